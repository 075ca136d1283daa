//! Where the API listens, with TLS or without.

use std::{
    fmt, io,
    net::SocketAddr,
    path::Path,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use axum::{extract::connect_info::Connected, serve::IncomingStream};
use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{Interval, interval, timeout},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use super::router;
use crate::{
    host::{Host, Settings},
    settings::TlsSettings,
};

/// Whoever does not finish the handshake within this is let go.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
/// Handshakes at a time. Whoever comes on top of them waits.
const HANDSHAKES_MAX: usize = 1_000;
/// How often it is looked whether there is a new certificate.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// Where the API listens.
pub struct Listener {
    tcp: TcpListener,
    /// Where that is.
    pub address: SocketAddr,
    tls: Option<Arc<Certificate>>,
}

impl Listener {
    /// Listens as the settings say. Nobody is answered yet.
    ///
    /// # Errors
    /// A sentence: an address that is taken, a certificate that cannot be used.
    pub async fn bind(settings: &Settings) -> Result<Self, String> {
        let listen = settings.listen;
        let tls = settings.tls.clone().map(Certificate::read).transpose()?.map(Arc::new);
        let tcp = TcpListener::bind(listen).await;
        let tcp =
            tcp.map_err(|e| format!("listen on {listen}: {e}; choose another address (`listen`, or --listen)"))?;
        let address = tcp.local_addr().map_err(|e| e.to_string())?;
        Ok(Self { tcp, address, tls })
    }
}

/// Serves the API until the listener fails.
///
/// # Errors
/// The listener's.
pub async fn serve(host: Host, listener: Listener) -> io::Result<()> {
    let service = router(host).into_make_service_with_connect_info::<ClientAddress>();
    match listener.tls {
        None => axum::serve(listener.tcp, service).await,
        Some(certificate) => axum::serve(Tls::new(listener.tcp, certificate)?, service).await,
    }
}

/// Where a request comes from.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClientAddress(pub(super) SocketAddr);

impl Connected<IncomingStream<'_, TcpListener>> for ClientAddress {
    fn connect_info(stream: IncomingStream<'_, TcpListener>) -> Self {
        Self(*stream.remote_addr())
    }
}

impl Connected<IncomingStream<'_, Tls>> for ClientAddress {
    fn connect_info(stream: IncomingStream<'_, Tls>) -> Self {
        Self(*stream.remote_addr())
    }
}

/// The certificate that the operator has put there, as it was last read.
struct Certificate {
    settings: TlsSettings,
    key: RwLock<Arc<CertifiedKey>>,
}

impl Certificate {
    fn read(settings: TlsSettings) -> Result<Self, String> {
        let key = RwLock::new(Arc::new(read(&settings)?));
        Ok(Self { settings, key })
    }

    /// A new one is used from now on; where it cannot be, the old one stays.
    fn look(&self) {
        match read(&self.settings) {
            Ok(key) => {
                let is_new = self.current().cert != key.cert;
                if is_new {
                    tracing::info!(certificate = %self.settings.certificate.display(), "the API has a new certificate");
                    *self.key.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(key);
                }
            }
            Err(error) => tracing::error!(error, "the API keeps the certificate that it has"),
        }
    }

    fn current(&self) -> Arc<CertifiedKey> {
        self.key.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificate").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current())
    }
}

fn read(settings: &TlsSettings) -> Result<CertifiedKey, String> {
    let failed = |name: &str, path: &Path, why: String| format!("`[tls] {name}`, `{}`: {why}", path.display());
    let certificates =
        CertificateDer::pem_file_iter(&settings.certificate).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let certificates = certificates.map_err(|e| failed("certificate", &settings.certificate, e.to_string()))?;
    if certificates.is_empty() {
        return Err(failed("certificate", &settings.certificate, "there is no certificate in it (PEM)".into()));
    }
    let key = PrivateKeyDer::from_pem_file(&settings.key).map_err(|e| failed("key", &settings.key, e.to_string()))?;
    CertifiedKey::from_der(certificates, key, &ring::default_provider())
        .map_err(|e| failed("key", &settings.key, format!("it does not go with the certificate: {e}")))
}

/// Connections whose handshake is done.
struct Tls {
    tcp: TcpListener,
    acceptor: TlsAcceptor,
    certificate: Arc<Certificate>,
    handshakes: JoinSet<Option<(TlsStream<TcpStream>, SocketAddr)>>,
    look: Interval,
}

impl Tls {
    fn new(tcp: TcpListener, certificate: Arc<Certificate>) -> io::Result<Self> {
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_no_client_auth()
            .with_cert_resolver(certificate.clone());
        let acceptor = TlsAcceptor::from(Arc::new(config));
        Ok(Self { tcp, acceptor, certificate, handshakes: JoinSet::new(), look: interval(LOOK_EVERY) })
    }
}

impl axum::serve::Listener for Tls {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let has_room = self.handshakes.len() < HANDSHAKES_MAX;
            tokio::select! {
                // Waits where a machine has no more files.
                (tcp, from) = axum::serve::Listener::accept(&mut self.tcp), if has_room => {
                    let acceptor = self.acceptor.clone();
                    self.handshakes.spawn(async move {
                        match timeout(HANDSHAKE_WITHIN, acceptor.accept(tcp)).await {
                            Ok(Ok(tls)) => Some((tls, from)),
                            Ok(Err(error)) => {
                                tracing::debug!(%from, %error, "a client does not get as far as TLS");
                                None
                            }
                            Err(_) => None,
                        }
                    });
                }
                Some(done) = self.handshakes.join_next() => {
                    if let Ok(Some(connection)) = done {
                        return connection;
                    }
                }
                _ = self.look.tick() => self.certificate.look(),
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// An exchange takes two writes: in between, and for as long as the files are of no use, the old one stays.
    #[test]
    fn a_new_certificate_is_used_once_its_key_goes_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let settings = TlsSettings { certificate: dir.path().join("api.pem"), key: dir.path().join("api.key") };
        let make = || {
            let key = rcgen::KeyPair::generate().unwrap();
            let params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
            (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
        };
        let ((first, first_key), (second, second_key)) = (make(), make());
        let write = |certificate: &str, key: &str| {
            std::fs::write(&settings.certificate, certificate).unwrap();
            std::fs::write(&settings.key, key).unwrap();
        };
        write(&first, &first_key);
        let certificate = Certificate::read(settings.clone()).unwrap();
        let old = certificate.current().cert.clone();
        for (wrong, key) in [(&second, &first_key), (&String::new(), &second_key), (&second, &String::new())] {
            write(wrong, key);
            certificate.look();
            assert_eq!(certificate.current().cert, old);
            let refused = Certificate::read(settings.clone()).unwrap_err();
            assert!(refused.starts_with("`[tls] certificate`") || refused.starts_with("`[tls] key`"), "{refused}");
        }
        write(&second, &second_key);
        certificate.look();
        assert_ne!(certificate.current().cert, old);
    }
}
