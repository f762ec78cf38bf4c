//! TLS, by rustls.

use std::io;
use std::sync::Arc;

use redis::RedisError;
use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{AlertDescription, CertificateError, ClientConfig, Error, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::failure::Reason;
use crate::store::redis::settings::RedisSettings;

const CLIENT_CERTIFICATE: &str =
    "give a certificate that the server accepts by `LockManagerBuilder::client_certificate`";

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
        let mut config = match &settings.client_certificate {
            None => config.with_no_client_auth(),
            Some((certificate, key)) => {
                let problem = |problem: String| format!("the client's certificate is not understood: {problem}");
                let chain = certificates(certificate).map_err(problem)?;
                let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| problem(format!("its key: {error}")))?;
                let config = config.with_client_auth_cert(chain, key);
                config.map_err(|error| problem(error.to_string()))?
            }
        };
        // A server that keeps no sessions (`tls-session-caching no`), and asks for a client's certificate, ends
        // each handshake that goes on with one.
        config.resumption = Resumption::disabled();
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
        let made = self.0.connect(name, stream).await;
        made.map_err(|error| match (reason(&error), error.kind()) {
            (Some(reason), _) => reason.into(),
            (None, io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe) => {
                Reason::passing(
                    format!("the connection was closed in the handshake of TLS: {error}"),
                    "check that a server is up behind this address, that it speaks TLS at this port, and that it takes more clients \
                     (maxclients), then try again",
                )
                .into()
            }
            (None, _) => error.into(),
        })
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

/// Returns the reason for an error of TLS that another try does not cure.
pub(super) fn reason(error: &io::Error) -> Option<Reason> {
    explain(error.get_ref()?.downcast_ref()?)
}

fn explain(error: &Error) -> Option<Reason> {
    let (text, advice) = match error {
        Error::InvalidCertificate(problem) => certificate(problem),
        Error::NoCertificatesPresented => ("the server shows no certificate", "give the server a certificate"),
        Error::AlertReceived(alert) => alerted(*alert)?,
        Error::InvalidMessage(_) => (
            "the server does not speak TLS at this port",
            "give `redis://` in the URL, or the port at which the server speaks TLS",
        ),
        Error::PeerIncompatible(_) => (
            "the server and this process have no version or kind of encryption of TLS in common",
            "let the server offer TLS 1.2 or 1.3 with the usual ciphers",
        ),
        _ => return None,
    };
    Some(Reason::lasting(format!("{text}: {error}"), advice))
}

fn certificate(problem: &CertificateError) -> (&'static str, &'static str) {
    match problem {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => (
            "the server's certificate has expired",
            "renew the server's certificate, or set this machine's clock",
        ),
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => (
            "the server's certificate is not valid yet",
            "set this machine's clock, or wait until the certificate is valid",
        ),
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => (
            "the server's certificate is for another name",
            "give a name in the URL that the certificate has, or give the server a certificate with this name (subjectAltName)",
        ),
        CertificateError::UnknownIssuer => (
            "the server's certificate is of an authority that is not trusted",
            "give that authority's certificate by `LockManagerBuilder::root_certificate`, or, without this setting, add it to the system's \
             trust store",
        ),
        CertificateError::Other(other) if other.to_string().contains("CaUsedAsEndEntity") => (
            "the server's certificate is that of an authority, as `openssl req -x509` makes it, and no server's",
            "let an authority sign a certificate for the server, or make it with `-addext basicConstraints=critical,CA:FALSE`, and give the \
             signing one by `LockManagerBuilder::root_certificate`",
        ),
        CertificateError::Revoked => (
            "the server's certificate has been revoked",
            "give the server a new certificate",
        ),
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => (
            "the server's certificate is not one for servers",
            "give the server a certificate whose extendedKeyUsage has serverAuth",
        ),
        _ => (
            "the server's certificate is not accepted",
            "give the server a certificate that rustls accepts (X.509 version 3, with a subjectAltName), of an authority given by \
             `LockManagerBuilder::root_certificate` or trusted by the system",
        ),
    }
}

/// Returns what an alert of the server means, if another try does not cure it.
fn alerted(alert: AlertDescription) -> Option<(&'static str, &'static str)> {
    Some(match alert {
        AlertDescription::CertificateRequired => ("the server asks for a client's certificate", CLIENT_CERTIFICATE),
        AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateRevoked
        | AlertDescription::CertificateExpired
        | AlertDescription::CertificateUnknown
        | AlertDescription::UnknownCA
        | AlertDescription::DecryptError
        | AlertDescription::AccessDenied => (
            "the server does not accept this client's certificate",
            CLIENT_CERTIFICATE,
        ),
        AlertDescription::HandshakeFailure
        | AlertDescription::ProtocolVersion
        | AlertDescription::InsufficientSecurity => (
            "the server refuses the handshake of TLS",
            "let the server offer TLS 1.2 or 1.3 with the usual ciphers, and if it asks for a client's certificate, give one by \
             `LockManagerBuilder::client_certificate`",
        ),
        AlertDescription::UnrecognisedName => (
            "the server has no certificate for this name",
            "give a name in the URL that the server's certificate has",
        ),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use rustls::{OtherError, PeerIncompatible};

    use super::*;
    use crate::store::redis::connection::failure;

    /// Returns the error as a caller sees it, out of an error of a stream.
    fn told(error: Error) -> (String, bool) {
        let io = io::Error::new(io::ErrorKind::InvalidData, error);
        let error = reason(&io).map_or_else(|| io.into(), RedisError::from);
        let error = failure::sort(&error, false);
        (error.to_string(), error.is_permanent())
    }

    #[test]
    fn every_error_of_a_certificate_lasts_and_says_what_to_do() {
        let invalid = Error::InvalidCertificate;
        let own_authority: Box<dyn std::error::Error + Send + Sync> = "CaUsedAsEndEntity".into();
        for (error, says) in [
            (
                invalid(CertificateError::Expired),
                "has expired; renew the server's certificate",
            ),
            (
                invalid(CertificateError::NotValidYet),
                "is not valid yet; set this machine's clock",
            ),
            (
                invalid(CertificateError::NotValidForName),
                "is for another name; give a name in the URL",
            ),
            (
                invalid(CertificateError::UnknownIssuer),
                "of an authority that is not trusted; give that authority's certificate by `LockManagerBuilder::root_certificate`",
            ),
            (
                invalid(CertificateError::Other(OtherError(own_authority.into()))),
                "that of an authority, as `openssl req -x509` makes it, and no server's; let an authority sign",
            ),
            (
                invalid(CertificateError::Revoked),
                "has been revoked; give the server a new certificate",
            ),
            (
                invalid(CertificateError::InvalidPurpose),
                "is not one for servers; give",
            ),
            (
                invalid(CertificateError::BadEncoding),
                "is not accepted; give the server a certificate",
            ),
            (
                invalid(CertificateError::BadSignature),
                "is not accepted; give the server a certificate",
            ),
            (
                Error::NoCertificatesPresented,
                "shows no certificate; give the server a certificate",
            ),
            (
                Error::AlertReceived(AlertDescription::CertificateRequired),
                "asks for a client's certificate; give a certificate that the server accepts",
            ),
            (
                Error::AlertReceived(AlertDescription::UnknownCA),
                "does not accept this client's certificate; give a certificate that the server accepts",
            ),
            (
                Error::PeerIncompatible(PeerIncompatible::ServerDoesNotSupportTls12Or13),
                "in common; let the server offer TLS 1.2 or 1.3",
            ),
        ] {
            let words = error.to_string();
            let (told, is_permanent) = told(error);
            assert!(told.contains(&words) && is_permanent, "{told}");
            let told = told.replacen(&format!(": {words}"), "", 1);
            assert!(told.contains(says), "{told} does not say: {says}");
        }
    }

    #[test]
    fn an_error_that_may_pass_is_tried_again() {
        for error in [
            Error::AlertReceived(AlertDescription::InternalError),
            Error::General("the stream ended".to_owned()),
        ] {
            let (told, is_permanent) = told(error);
            assert!(!is_permanent, "{told}");
        }
    }
}
