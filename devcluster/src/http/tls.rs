//! The cluster's certificate authority and serving certificate, made at start.

use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::{
    ServerConfig,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
};

/// Why TLS could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A certificate could not be made.
    #[error("cannot make the certificate of the {what}")]
    Certificate {
        /// Whose certificate.
        what: &'static str,
        /// The cause.
        #[source]
        source: Box<rcgen::Error>,
    },
    /// The certificate and key do not make a server.
    #[error("cannot use the serving certificate")]
    Config(#[source] Box<rustls::Error>),
}

/// A fresh certificate authority with one serving certificate.
pub(crate) struct Identity {
    /// The authority's certificate, PEM.
    pub(crate) ca_pem: String,
    /// Server side settings; ALPN offers h2 and http/1.1.
    pub(crate) server: Arc<ServerConfig>,
}

impl Identity {
    /// Makes both certificates for the given host names and addresses.
    pub(crate) fn generate(names: Vec<String>) -> Result<Self, Error> {
        let at = |what| {
            move |source| Error::Certificate {
                what,
                source: Box::new(source),
            }
        };
        let unusable = |error| Error::Config(Box::new(error));
        let mut params = CertificateParams::new(Vec::new()).map_err(at("authority"))?;
        params
            .distinguished_name
            .push(DnType::CommonName, "devcluster-ca");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().map_err(at("authority"))?;
        let ca = params.self_signed(&key).map_err(at("authority"))?;
        let issuer = Issuer::new(params, key);

        let mut params = CertificateParams::new(names).map_err(at("server"))?;
        params
            .distinguished_name
            .push(DnType::CommonName, "devcluster");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().map_err(at("server"))?;
        let certificate = params.signed_by(&key, &issuer).map_err(at("server"))?;

        let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(unusable)?
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], private)
            .map_err(unusable)?;
        server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self {
            ca_pem: ca.pem(),
            server: Arc::new(server),
        })
    }
}
