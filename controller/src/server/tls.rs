//! The serving certificate.

use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::{Error, TlsFiles};

/// Reads certificate and key; offers HTTP/1.1 and nothing else.
pub(super) fn config(files: &TlsFiles) -> Result<Arc<ServerConfig>, Error> {
    let unreadable = |what, path: &std::path::Path| {
        let path = path.to_owned();
        move |source| Error::Pem {
            what,
            path,
            source: Box::new(source),
        }
    };
    let chain = CertificateDer::pem_file_iter(&files.certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(unreadable("certificate", &files.certificate))?;
    let key =
        PrivateKeyDer::from_pem_file(&files.key).map_err(unreadable("private key", &files.key))?;
    let unusable = |source| Error::Certificate {
        path: files.certificate.clone(),
        source: Box::new(source),
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(unusable)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(unusable)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
