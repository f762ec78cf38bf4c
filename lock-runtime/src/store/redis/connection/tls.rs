//! TLS, by rustls.

use std::sync::Arc;

use redis::RedisError;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::failure::Reason;
use crate::store::redis::settings::RedisSettings;

/// Makes TLS of TCP connections.
#[derive(Clone)]
pub(super) struct Tls(TlsConnector);

impl Tls {
    /// Creates one with these settings.
    ///
    /// # Errors
    /// Fails with the problem, if the certificates are not understood.
    pub(super) fn new(settings: &RedisSettings) -> Result<Self, String> {
        // That of the process, if the application has chosen one. rustls would guess one otherwise, and panics
        // if several are compiled in.
        let provider = CryptoProvider::get_default().cloned();
        let provider = provider.unwrap_or_else(|| Arc::new(ring::default_provider()));
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.map_err(|error| format!("the process's cryptography has no version of TLS: {error}"))?;
        let roots = match &settings.root_certificate {
            Some(pem) => given(pem)?,
            None => of_the_system(),
        };
        let config = config.with_root_certificates(roots);
        let config = match &settings.client_certificate {
            None => config.with_no_client_auth(),
            Some((certificate, key)) => {
                let problem = |problem: String| format!("the client's certificate is not understood: {problem}");
                let chain = certificates(certificate).map_err(problem)?;
                let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| problem(format!("its key: {error}")))?;
                let config = config.with_client_auth_cert(chain, key);
                config.map_err(|error| problem(error.to_string()))?
            }
        };
        Ok(Self(Arc::new(config).into()))
    }

    /// Checks that the server is `host`, on a new connection.
    pub(super) async fn connect(&self, host: &str, stream: TcpStream) -> Result<TlsStream<TcpStream>, RedisError> {
        let name = ServerName::try_from(host.to_owned()).map_err(|error| {
            Reason::lasting(
                format!("`{host}` is no name that a certificate can have: {error}"),
                "give the server's host name or address in the URL",
            )
        })?;
        Ok(self.0.connect(name, stream).await?)
    }
}

/// Returns the certificates of a setting.
fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let read = read.map_err(|error| error.to_string())?;
    if read.is_empty() {
        return Err(
            "it has no certificate in the form PEM, which begins with `-----BEGIN CERTIFICATE-----`".to_owned(),
        );
    }
    Ok(read)
}

fn given(pem: &[u8]) -> Result<RootCertStore, String> {
    let problem = |problem: String| format!("the root certificate is not understood: {problem}");
    let mut roots = RootCertStore::empty();
    for certificate in certificates(pem).map_err(problem)? {
        roots.add(certificate).map_err(|error| problem(error.to_string()))?;
    }
    Ok(roots)
}

/// Returns the authorities that the system trusts, as far as they are understood.
fn of_the_system() -> RootCertStore {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (_, ignored) = roots.add_parsable_certificates(found.certs);
    if ignored > 0 || !found.errors.is_empty() {
        tracing::debug!(ignored, errors = ?found.errors, "some of the system's certificates cannot be read");
    }
    if roots.is_empty() {
        tracing::warn!(
            "the system trusts no authority, so no certificate of a server can be checked; install the system's certificates, or give the \
             authority's by `LockManagerBuilder::root_certificate`"
        );
    }
    roots
}
