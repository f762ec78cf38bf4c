//! Certificates for the TLS tests, made afresh by the `openssl` program.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use tempfile::TempDir;

use crate::reaper;

/// What is right or wrong with the certificate a server shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Certificate {
    /// Signed by the test authority, for `localhost` and `127.0.0.1`, valid now.
    Valid,
    /// As [`Certificate::Valid`], but its time is over.
    Expired,
    /// As [`Certificate::Valid`], but for another host.
    WrongName,
    /// For the right host, by an authority that nobody trusts.
    Stranger,
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
    const ALL: [Self; 4] = [Self::Valid, Self::Expired, Self::WrongName, Self::Stranger];

    /// The files of this certificate. They are made once per test process and stay until it ends.
    #[must_use]
    pub fn files(self) -> Files {
        let folder = folder();
        Files {
            certificate: folder.join(format!("{self:?}.pem")),
            key: folder.join(format!("{self:?}.key")),
            authority: folder.join("authority.pem"),
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
    let at = folder.path();
    authority(at, "authority");
    authority(at, "strangers-authority");
    fs::write(at.join("ca.conf"), CA_CONF).expect("the temporary folder is writable");
    fs::write(at.join("serial"), "01\n").expect("the temporary folder is writable");
    fs::write(at.join("index.txt"), "").expect("the temporary folder is writable");

    for certificate in Certificate::ALL {
        let name = format!("{certificate:?}");
        let host = if certificate == Certificate::WrongName {
            "DNS:elsewhere.test"
        } else {
            "DNS:localhost,IP:127.0.0.1"
        };
        let authority = if certificate == Certificate::Stranger {
            "strangers-authority"
        } else {
            "authority"
        };
        let (from, until) = if certificate == Certificate::Expired {
            ("20200101000000Z", "20200201000000Z")
        } else {
            ("20200101000000Z", "20491231000000Z")
        };
        let subject = format!("/CN=lock test {name}");
        let alternative = format!("subjectAltName={host}");
        let (key, request, signed) = (format!("{name}.key"), format!("{name}.csr"), format!("{name}.pem"));
        openssl(
            at,
            &[
                "req",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
                "-nodes",
                "-keyout",
                &key,
                "-out",
                &request,
                "-subj",
                &subject,
                "-addext",
                &alternative,
            ],
        );
        // `ca`, because it is the only sub-command that sets both dates in every OpenSSL of the last ten years.
        openssl(
            at,
            &[
                "ca",
                "-batch",
                "-notext",
                "-config",
                "ca.conf",
                "-cert",
                &format!("{authority}.pem"),
                "-keyfile",
                &format!("{authority}.key"),
                "-startdate",
                from,
                "-enddate",
                until,
                "-in",
                &request,
                "-out",
                &signed,
            ],
        );
    }
    folder
}

fn authority(at: &Path, name: &str) {
    let (key, out, subject) = (
        format!("{name}.key"),
        format!("{name}.pem"),
        format!("/CN=lock test {name}"),
    );
    openssl(
        at,
        &[
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-keyout",
            &key,
            "-out",
            &out,
            "-subj",
            &subject,
            "-days",
            "3650",
        ],
    );
}

fn openssl(at: &Path, args: &[&str]) {
    let output = Command::new("openssl")
        .args(args)
        .current_dir(at)
        .output()
        .expect("the TLS tests need the openssl program: run ./tests/install-servers, or install openssl");
    assert!(
        output.status.success(),
        "openssl {} failed: {}",
        args[0],
        String::from_utf8_lossy(&output.stderr)
    );
}

const CA_CONF: &str = "\
[ca]
default_ca = tests
[tests]
new_certs_dir = .
database = index.txt
serial = serial
default_md = sha256
policy = anything
copy_extensions = copy
unique_subject = no
[anything]
commonName = supplied
";
