//! Certificates for the TLS tests, made afresh by each test process.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rcgen::{BasicConstraints, CertificateParams, DnType, Error, IsCa, Issuer, KeyPair, date_time_ymd};
use tempfile::TempDir;

use crate::reaper;

/// What is right or wrong with the certificate a server shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Certificate {
    /// Signed by the test authority, for `localhost` and `127.0.0.1`, valid now.
    Valid,
    /// As [`Certificate::Valid`], but its time is over.
    Expired,
    /// As [`Certificate::Valid`], but its time has not begun.
    Early,
    /// As [`Certificate::Valid`], but for another host.
    WrongName,
    /// For the right host, by an authority that nobody trusts.
    Stranger,
    /// For the right host, signed by itself, and an authority, as `openssl req -x509` makes one. Its clients trust it.
    ItsOwnAuthority,
}

/// The PEM files a server needs, and the authority its clients are to trust.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// The server's certificate.
    pub certificate: PathBuf,
    /// The server's private key.
    pub key: PathBuf,
    /// The authority that clients trust.
    pub authority: PathBuf,
}

impl Certificate {
    const ALL: [Self; 6] = [
        Self::Valid,
        Self::Expired,
        Self::Early,
        Self::WrongName,
        Self::Stranger,
        Self::ItsOwnAuthority,
    ];

    /// The files of this certificate. They are made once per test process and stay until it ends.
    #[must_use]
    pub fn files(self) -> Files {
        let folder = folder();
        let authority = match self {
            Self::ItsOwnAuthority => format!("{self:?}.pem"),
            _ => "authority.pem".to_owned(),
        };
        Files {
            certificate: folder.join(format!("{self:?}.pem")),
            key: folder.join(format!("{self:?}.key")),
            authority: folder.join(authority),
        }
    }
}

fn folder() -> &'static Path {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    FOLDER.get_or_init(make).path()
}

fn make() -> TempDir {
    let folder = tempfile::Builder::new()
        .prefix("lock-test-tls-")
        .tempdir()
        .expect("a temporary folder");
    // It ends up in a static, which nothing drops.
    reaper::keeps(folder.path());
    write_all(folder.path()).expect("the parameters of the certificates are fine");
    folder
}

fn write_all(folder: &Path) -> Result<(), Error> {
    let write = |file: String, pem: &str| fs::write(folder.join(file), pem).expect("the temporary folder is writable");
    let (authority, pem) = self::authority("authority")?;
    write("authority.pem".to_owned(), &pem);
    let (strangers_authority, _) = self::authority("strangers' authority")?;
    for certificate in Certificate::ALL {
        let hosts: &[&str] = match certificate {
            Certificate::WrongName => &["elsewhere.test"],
            _ => &["localhost", "127.0.0.1"],
        };
        let mut params = params(&format!("{certificate:?}"), hosts)?;
        if certificate == Certificate::Expired {
            params.not_after = date_time_ymd(2020, 2, 1);
        }
        if certificate == Certificate::Early {
            params.not_before = date_time_ymd(2049, 12, 1);
        }
        let issuer = match certificate {
            Certificate::Stranger => &strangers_authority,
            _ => &authority,
        };
        let key = KeyPair::generate()?;
        let signed = if certificate == Certificate::ItsOwnAuthority {
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.self_signed(&key)?
        } else {
            params.signed_by(&key, issuer)?
        };
        write(format!("{certificate:?}.pem"), &signed.pem());
        write(format!("{certificate:?}.key"), &key.serialize_pem());
    }
    Ok(())
}

/// Returns an authority, and its own certificate as PEM.
fn authority(name: &str) -> Result<(Issuer<'static, KeyPair>, String), Error> {
    let mut params = params(name, &[])?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate()?;
    let pem = params.self_signed(&key)?.pem();
    Ok((Issuer::new(params, key), pem))
}

/// Valid from 2020 to 2049.
fn params(name: &str, hosts: &[&str]) -> Result<CertificateParams, Error> {
    let hosts: Vec<_> = hosts.iter().map(|&host| host.to_owned()).collect();
    let mut params = CertificateParams::new(hosts)?;
    params
        .distinguished_name
        .push(DnType::CommonName, format!("lock test {name}"));
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(2049, 12, 31);
    Ok(params)
}
