# The release image: one program, without the embedded cluster, as user 65532 on a root that may be
# read-only. Features beside the defaults of a release: docker build --build-arg FEATURES=…
FROM rust:1.95-slim-trixie AS build
ARG FEATURES=gce
WORKDIR /src
COPY . .
RUN cargo build --release --locked --package proxy-operator --no-default-features --features "$FEATURES" \
 && cp target/release/proxy-operator /proxy-operator

# The C library is no older than the one it was built with; certificates are for the interfaces of clouds.
FROM debian:trixie-slim
RUN apt-get update \
 && apt-get install --yes --no-install-recommends ca-certificates \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build /proxy-operator /proxy-operator
USER 65532:65532
EXPOSE 8080 8081
ENTRYPOINT ["/proxy-operator"]
CMD ["run"]
