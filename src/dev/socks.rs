//! A real SOCKS5 proxy for a simulated machine (RFC 1928, CONNECT, user name and password of
//! RFC 1929). It calls loopback targets only.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use fast_socks5::server::Socks5ServerProtocol;
use fast_socks5::util::target_addr::TargetAddr;
use fast_socks5::{ReplyError, Socks5Command, SocksError};
use tokio::net::{TcpListener, TcpSocket, TcpStream, lookup_host};
use tokio::task::JoinSet;

use crate::provider::Credentials;

/// Connections that one proxy has open at most.
const CONNECTIONS: usize = 256;
/// Longest time for the talk before the tunnel, the call of the target included.
const TALK: Duration = Duration::from_secs(10);

/// How a proxy is set up.
#[derive(Clone, Debug)]
pub(super) struct SocksOptions {
    /// Where it listens.
    pub(super) listen: SocketAddr,
    /// Where its calls come from.
    pub(super) source: Ipv4Addr,
    /// What clients must send, if anything.
    pub(super) credentials: Option<Credentials>,
}

/// A running proxy; dropping it closes the listener and all connections at once.
#[derive(Debug)]
pub(super) struct SocksProxy {
    _accepting: JoinSet<()>,
}

impl SocksProxy {
    /// Listens, and serves until it is dropped.
    pub(super) async fn start(options: SocksOptions) -> io::Result<Self> {
        let listener = TcpListener::bind(options.listen).await?;
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(listener, Arc::new(options)));
        Ok(Self {
            _accepting: accepting,
        })
    }
}

async fn accept(listener: TcpListener, options: Arc<SocksOptions>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < CONNECTIONS => match accepted {
                Ok((client, _)) => {
                    let options = Arc::clone(&options);
                    connections.spawn(async move {
                        if let Err(error) = serve(client, &options).await {
                            tracing::debug!(%error, "a SOCKS connection broke");
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// One connection, from its greeting to the end of its tunnel.
async fn serve(client: TcpStream, options: &SocksOptions) -> Result<(), SocksError> {
    let talk = tokio::time::timeout(TALK, tunnel(client, options));
    let Some((mut client, mut target)) = talk.await.unwrap_or(Ok(None))? else {
        return Ok(());
    };
    tokio::io::copy_bidirectional(&mut client, &mut target).await?;
    Ok(())
}

/// Both ends of the tunnel that a client asked for; `None` if it was refused.
async fn tunnel(
    client: TcpStream,
    options: &SocksOptions,
) -> Result<Option<(TcpStream, TcpStream)>, SocksError> {
    let authenticated = match &options.credentials {
        None => Socks5ServerProtocol::accept_no_auth(client).await?,
        Some(wanted) => {
            let admits = |name: String, password: String| {
                name.as_bytes() == wanted.username.expose()
                    && password.as_bytes() == wanted.password.expose()
            };
            let (authenticated, _) =
                Socks5ServerProtocol::accept_password_auth(client, admits).await?;
            authenticated
        }
    };
    let (asked, command, target) = authenticated.read_command().await?;
    if command != Socks5Command::TCPConnect {
        asked.reply_error(&ReplyError::CommandNotSupported).await?;
        return Ok(None);
    }
    match connect(target, options.source).await {
        Ok(target) => {
            let client = asked.reply_success(target.local_addr()?).await?;
            Ok(Some((client, target)))
        }
        Err(refusal) => {
            asked.reply_error(&refusal).await?;
            Ok(None)
        }
    }
}

/// Calls a loopback target from `source`. The check is made on the resolved address.
async fn connect(target: TargetAddr, source: Ipv4Addr) -> Result<TcpStream, ReplyError> {
    let address = match target {
        TargetAddr::Ip(address) => address,
        TargetAddr::Domain(name, port) => {
            let mut found = lookup_host((name, port))
                .await
                .map_err(|_| ReplyError::HostUnreachable)?;
            let address = found.find(SocketAddr::is_ipv4);
            address.ok_or(ReplyError::HostUnreachable)?
        }
    };
    if !address.ip().is_loopback() || !address.is_ipv4() {
        return Err(ReplyError::ConnectionNotAllowed);
    }
    let call = async {
        let socket = TcpSocket::new_v4()?;
        socket.bind((source, 0).into())?;
        socket.connect(address).await
    };
    call.await.map_err(|_| ReplyError::ConnectionRefused)
}
