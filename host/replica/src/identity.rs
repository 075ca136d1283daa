//! Who a node is: certificates of the cluster's own.
//!
//! The first node makes a certificate authority. Every node has a certificate of it that is good for one name,
//! `node-3.CLUSTER.tickhost`, so that a node proves its number and its cluster with each connection, in both
//! directions. Voters hold the authority's key, so that any of them can let nodes in; executors do not.

use std::{
    collections::BTreeMap,
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, RwLock},
};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
    server::WebPkiClientVerifier,
};
use serde::{Deserialize, Serialize};
use tickhost_ledger::Digest;
use time::{Duration, OffsetDateTime};
use uuid::Uuid;

/// The authority outlives every machine of the cluster.
const AUTHORITY_DAYS: i64 = 3_650;
/// A node's certificate is renewed by itself, long before it ends.
const NODE_DAYS: i64 = 90;
/// With this much left it is renewed. Arbitrary: long enough for an operator to notice that it does not work.
const RENEW_DAYS: i64 = 30;
/// Clocks of machines differ: a new certificate is good from a day ago.
const SKEW: Duration = Duration::DAY;

/// An identity cannot be made, read or written.
#[derive(Debug, thiserror::Error)]
#[error("{what} `{path}`: {why}")]
pub struct IdentityError {
    what: &'static str,
    path: PathBuf,
    why: String,
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(String) -> IdentityError {
    let path = path.to_owned();
    move |why| IdentityError { what, path, why }
}

/// A node's identity and the files that it is kept in.
#[derive(Debug)]
pub struct Identity {
    /// The cluster.
    pub cluster: Uuid,
    /// The number in it.
    pub node: u64,
    dir: PathBuf,
    tls: RwLock<Tls>,
    contacts: Mutex<BTreeMap<u64, String>>,
}

#[derive(Debug, Clone)]
struct Tls {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    expires_at: OffsetDateTime,
}

/// What `identity.json` says.
#[derive(Debug, Serialize, Deserialize)]
struct Name {
    cluster: Uuid,
    node: u64,
    /// Seconds since 1970.
    expires_at: i64,
    contacts: BTreeMap<u64, String>,
}

impl Name {
    fn write(&self, dir: &Path) -> Result<(), IdentityError> {
        let text = serde_json::to_string(self).map_err(|e| failed("write", dir)(e.to_string()))?;
        write(&dir.join(NAME), &text)
    }
}

/// What a node that joins is given.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Credentials {
    /// The cluster.
    pub cluster: Uuid,
    /// Its life between restores.
    #[serde(default)]
    pub epoch: u64,
    /// The number in it.
    pub node: u64,
    /// The authority's certificate, PEM.
    pub authority: String,
    /// The node's certificate, PEM.
    pub certificate: String,
    /// Until when that is good, in seconds since 1970.
    pub expires_at: i64,
    /// Where other nodes are reached.
    pub contacts: BTreeMap<u64, String>,
}

/// A key that a certificate is asked for. The key itself never leaves the node.
pub struct Request {
    key: KeyPair,
    /// The request, PEM.
    pub pem: String,
}

impl Request {
    /// Makes a key.
    ///
    /// # Errors
    /// The machine's random numbers.
    pub fn new() -> Result<Self, String> {
        let key = KeyPair::generate().map_err(|e| e.to_string())?;
        let request = CertificateParams::default().serialize_request(&key).map_err(|e| e.to_string())?;
        let pem = request.pem().map_err(|e| e.to_string())?;
        Ok(Self { key, pem })
    }
}

/// The name that a node's certificate is good for.
pub(crate) fn dns_name(cluster: Uuid, node: u64) -> String {
    format!("node-{node}.{cluster}.tickhost")
}

/// The certificate authority of a cluster.
pub struct Authority {
    cluster: Uuid,
    issuer: Issuer<'static, KeyPair>,
    /// Its certificate, PEM.
    pub certificate: String,
}

impl Authority {
    /// Makes one, in the identity's folder of a data directory.
    ///
    /// # Errors
    /// Files that cannot be written.
    pub fn create(data: &Path, cluster: Uuid) -> Result<Self, IdentityError> {
        let dir = folder(data)?;
        let make = |e: rcgen::Error| IdentityError { what: "make", path: dir.join(AUTHORITY), why: e.to_string() };
        let key = KeyPair::generate().map_err(make)?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, format!("tickhost cluster {cluster}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let now = OffsetDateTime::now_utc();
        params.not_before = now - SKEW;
        params.not_after = now + Duration::days(AUTHORITY_DAYS);
        let certificate = params.self_signed(&key).map_err(make)?.pem();
        write(&dir.join(AUTHORITY_KEY), &key.serialize_pem())?;
        write(&dir.join(AUTHORITY), &certificate)?;
        Ok(Self { cluster, issuer: Issuer::new(params, key), certificate })
    }

    /// Reads the one whose key lies on this node.
    ///
    /// # Errors
    /// A node that has no key: it does not vote, or has only just begun to.
    pub fn open(identity: &Identity) -> Result<Self, IdentityError> {
        let path = identity.dir.join(AUTHORITY_KEY);
        let key = KeyPair::from_pem(&read(&path)?).map_err(|e| failed("read", &path)(e.to_string()))?;
        let path = identity.dir.join(AUTHORITY);
        let certificate = read(&path)?;
        let issuer = Issuer::from_ca_cert_pem(&certificate, key).map_err(|e| failed("read", &path)(e.to_string()))?;
        Ok(Self { cluster: identity.cluster, issuer, certificate })
    }

    /// Signs a certificate for a node.
    ///
    /// # Errors
    /// A text that is no request.
    pub fn sign(&self, node: u64, request: &str) -> Result<Credentials, String> {
        let request = CertificateSigningRequestParams::from_pem(request).map_err(|e| e.to_string())?;
        // Of the request only the key counts; what the certificate says is the authority's.
        let mut params = CertificateParams::new(vec![dns_name(self.cluster, node)]).map_err(|e| e.to_string())?;
        params.distinguished_name.push(DnType::CommonName, format!("tickhost node {node}"));
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let now = OffsetDateTime::now_utc();
        params.not_before = now - SKEW;
        params.not_after = now + Duration::days(NODE_DAYS);
        let certificate = params.signed_by(&request.public_key, &self.issuer).map_err(|e| e.to_string())?;
        Ok(Credentials {
            cluster: self.cluster,
            epoch: 0,
            node,
            authority: self.certificate.clone(),
            certificate: certificate.pem(),
            expires_at: params.not_after.unix_timestamp(),
            contacts: BTreeMap::new(),
        })
    }
}

const AUTHORITY: &str = "authority.pem";
const AUTHORITY_KEY: &str = "authority.key";
const CERTIFICATE: &str = "node.pem";
const KEY: &str = "node.key";
const NAME: &str = "identity.json";

/// The SHA-256 of an authority's certificate: what a token names it by.
///
/// # Errors
/// A text that is no certificate.
pub fn fingerprint(authority: &str) -> Result<Digest, String> {
    let der = CertificateDer::from_pem_slice(authority.as_bytes()).map_err(|e| e.to_string())?;
    Ok(Digest::of(&der))
}

impl Identity {
    /// Stores what the authority has signed, and the key that it was signed for.
    ///
    /// # Errors
    /// Files that cannot be written, and certificates that do not belong together.
    pub fn store(data: &Path, request: &Request, given: &Credentials) -> Result<Self, IdentityError> {
        let dir = folder(data)?;
        let name = Name {
            cluster: given.cluster,
            node: given.node,
            expires_at: given.expires_at,
            contacts: given.contacts.clone(),
        };
        write(&dir.join(AUTHORITY), &given.authority)?;
        write(&dir.join(KEY), &request.key.serialize_pem())?;
        write(&dir.join(CERTIFICATE), &given.certificate)?;
        // Last: whoever finds it finds the rest.
        name.write(&dir)?;
        match Self::open(data)? {
            Some(identity) => Ok(identity),
            None => Err(failed("read", &dir)("it is gone".into())),
        }
    }

    /// The identity in a data directory; `None` where there is none.
    ///
    /// # Errors
    /// Files that cannot be read or do not belong together.
    pub fn open(data: &Path) -> Result<Option<Self>, IdentityError> {
        let dir = data.join("pki");
        let path = dir.join(NAME);
        if !path.exists() {
            return Ok(None);
        }
        let name: Name = serde_json::from_str(&read(&path)?).map_err(|e| failed("read", &path)(e.to_string()))?;
        let tls = Tls::read(&dir, name.expires_at)?;
        let Name { cluster, node, contacts, .. } = name;
        Ok(Some(Self { cluster, node, dir, tls: RwLock::new(tls), contacts: Mutex::new(contacts) }))
    }

    /// Where other nodes were reached last: whom this one asks while its own log does not say.
    pub fn contacts(&self) -> BTreeMap<u64, String> {
        self.contacts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Remembers where other nodes are reached.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn note_contacts(&self, now: BTreeMap<u64, String>) -> Result<(), IdentityError> {
        let mut contacts = self.contacts.lock().unwrap_or_else(PoisonError::into_inner);
        if *contacts == now {
            return Ok(());
        }
        let (cluster, node, expires_at) = (self.cluster, self.node, self.expires_at());
        Name { cluster, node, expires_at, contacts: now.clone() }.write(&self.dir)?;
        *contacts = now;
        Ok(())
    }

    /// Takes a new certificate and key into use: connections that are made from now on have them.
    ///
    /// # Errors
    /// As [`Identity::store`].
    pub fn renew(&self, request: &Request, given: &Credentials) -> Result<(), IdentityError> {
        let data = self.dir.parent().unwrap_or(&self.dir);
        let given = Credentials { contacts: self.contacts(), ..given.clone() };
        let renewed = Self::store(data, request, &given)?;
        *self.tls.write().unwrap_or_else(PoisonError::into_inner) = renewed.tls();
        Ok(())
    }

    /// Whether the certificate ends soon.
    pub fn is_to_be_renewed(&self) -> bool {
        self.tls().expires_at - OffsetDateTime::now_utc() < Duration::days(RENEW_DAYS)
    }

    /// Until when the certificate is good, in seconds since 1970.
    pub fn expires_at(&self) -> i64 {
        self.tls().expires_at.unix_timestamp()
    }

    /// Whether the authority's key is on this node.
    pub fn has_authority(&self) -> bool {
        self.dir.join(AUTHORITY_KEY).exists()
    }

    /// The authority's key, PEM: for a node that votes.
    ///
    /// # Errors
    /// A node that has none.
    pub fn authority_key(&self) -> Result<String, IdentityError> {
        read(&self.dir.join(AUTHORITY_KEY))
    }

    /// The authority's certificate, PEM.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn authority(&self) -> Result<String, IdentityError> {
        read(&self.dir.join(AUTHORITY))
    }

    /// Keeps the authority's key.
    ///
    /// # Errors
    /// A text that is no key, and files that cannot be written.
    pub fn keep_authority_key(&self, pem: &str) -> Result<(), IdentityError> {
        let path = self.dir.join(AUTHORITY_KEY);
        KeyPair::from_pem(pem).map_err(|e| failed("keep", &path)(e.to_string()))?;
        write(&path, pem)
    }

    fn tls(&self) -> Tls {
        self.tls.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn client(&self) -> Arc<ClientConfig> {
        self.tls().client
    }

    pub(crate) fn server(&self) -> Arc<ServerConfig> {
        self.tls().server
    }

    /// The number of the node that has this certificate, if it is one of this cluster.
    pub(crate) fn node_of(&self, certificate: &CertificateDer<'_>) -> Option<u64> {
        let certificate = webpki::EndEntityCert::try_from(certificate).ok()?;
        let suffix = format!(".{}.tickhost", self.cluster);
        certificate.valid_dns_names().find_map(|name| name.strip_suffix(&suffix)?.strip_prefix("node-")?.parse().ok())
    }

    pub(crate) fn server_name(&self, node: u64) -> Option<ServerName<'static>> {
        ServerName::try_from(dns_name(self.cluster, node)).ok()
    }
}

impl Tls {
    fn read(dir: &Path, expires_at: i64) -> Result<Self, IdentityError> {
        // A second installation is no fault: the first one is the same provider.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let wrong = |e: String| failed("use the certificates in", dir)(e);
        let authority = CertificateDer::from_pem_file(dir.join(AUTHORITY)).map_err(|e| wrong(e.to_string()))?;
        // With the authority's own, for those who join and know it by its fingerprint only.
        let certificate = CertificateDer::from_pem_file(dir.join(CERTIFICATE)).map_err(|e| wrong(e.to_string()))?;
        let chain = vec![certificate, authority.clone()];
        let key = || PrivateKeyDer::from_pem_file(dir.join(KEY)).map_err(|e| wrong(e.to_string()));
        let mut roots = RootCertStore::empty();
        roots.add(authority).map_err(|e| wrong(e.to_string()))?;
        let roots = Arc::new(roots);
        let mut client = ClientConfig::builder()
            .with_root_certificates(roots.clone())
            .with_client_auth_cert(chain.clone(), key()?)
            .map_err(|e| wrong(e.to_string()))?;
        client.alpn_protocols = vec![b"h2".to_vec()];
        // Who has no certificate may only use a token: what it may ask for is decided where its request arrives.
        let verifier =
            WebPkiClientVerifier::builder(roots).allow_unauthenticated().build().map_err(|e| wrong(e.to_string()))?;
        let mut server = ServerConfig::builder()
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key()?)
            .map_err(|e| wrong(e.to_string()))?;
        server.alpn_protocols = vec![b"h2".to_vec()];
        let expires_at = OffsetDateTime::from_unix_timestamp(expires_at).map_err(|e| wrong(e.to_string()))?;
        Ok(Self { client: Arc::new(client), server: Arc::new(server), expires_at })
    }
}

fn folder(data: &Path) -> Result<PathBuf, IdentityError> {
    let dir = data.join("pki");
    std::fs::create_dir_all(&dir).map_err(|e| failed("create", &dir)(e.to_string()))?;
    Ok(dir)
}

fn read(path: &Path) -> Result<String, IdentityError> {
    std::fs::read_to_string(path).map_err(|e| failed("read", path)(e.to_string()))
}

fn write(path: &Path, text: &str) -> Result<(), IdentityError> {
    write_private(path, text).map_err(|e| failed("write", path)(e.to_string()))
}

/// Writes a file for the owner's eyes only, whole or not at all.
///
/// # Errors
/// The file system's.
pub fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let partial = path.with_extension("partial");
    // One that is there already would keep the rights that it has.
    match std::fs::remove_file(&partial) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = std::fs::File::options().write(true).create_new(true).mode(0o600).open(&partial)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&partial, path)?;
    path.parent().map_or(Ok(()), |dir| std::fs::File::open(dir)?.sync_all())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_names_its_node_and_its_cluster() {
        let dir = tempfile::tempdir().expect("a folder");
        let cluster = Uuid::from_u128(7);
        let authority = Authority::create(dir.path(), cluster).expect("an authority");
        let request = Request::new().expect("a key");
        let given = authority.sign(3, &request.pem).expect("a certificate");
        let identity = Identity::store(dir.path(), &request, &given).expect("an identity");
        assert_eq!((identity.node, identity.cluster), (3, cluster));
        assert!(!identity.is_to_be_renewed());
        let certificate = CertificateDer::from_pem_slice(given.certificate.as_bytes()).expect("a certificate");
        assert_eq!(identity.node_of(&certificate), Some(3));
        let elsewhere =
            Identity { cluster: Uuid::from_u128(8), ..Identity::open(dir.path()).expect("ok").expect("one") };
        assert_eq!(elsewhere.node_of(&certificate), None, "of another cluster");
        let again = Authority::open(&identity).expect("the same authority");
        assert_eq!(fingerprint(&again.certificate), fingerprint(&given.authority));
        let renewal = Request::new().expect("a key");
        let renewed = again.sign(3, &renewal.pem).expect("a certificate");
        identity.renew(&renewal, &renewed).expect("renewed");
        assert!(Identity::open(tempfile::tempdir().expect("a folder").path()).expect("ok").is_none());
    }

    #[test]
    fn keys_are_the_owners_alone() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().expect("a folder");
        Authority::create(dir.path(), Uuid::from_u128(7)).expect("an authority");
        let mode = std::fs::metadata(dir.path().join("pki").join(AUTHORITY_KEY)).expect("a key").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
