//! Joining: what a node without a certificate can ask for, with a token.
//!
//! A token names the cluster's authority by its fingerprint, so that the one who joins knows whom it speaks to before
//! it says the secret; and the secret, of which the cluster keeps the digest only.

use std::{fmt, str::FromStr, sync::Arc, time::Duration};

use http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use serde::{Serialize, de::DeserializeOwned};
use tickhost_ledger::{Digest, codec};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::{peers::full, tls::handshake};

const PREFIX: &str = "tickhost-join-1-";
const WITHIN: Duration = Duration::from_secs(20);

/// A right to join a cluster.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    /// Of the cluster's authority.
    pub authority: Digest,
    /// Known to its holder only.
    pub secret: [u8; 32],
}

impl JoinToken {
    /// A new one.
    pub fn new(authority: Digest) -> Self {
        Self { authority, secret: secret() }
    }

    /// What the cluster keeps of the secret.
    pub fn digest(&self) -> Digest {
        Digest::of(&self.secret)
    }
}

/// 256 random bits.
pub fn secret() -> [u8; 32] {
    let random = || *uuid::Uuid::new_v4().as_bytes();
    // Of each number six bits are fixed: three hashed together leave more than enough.
    Digest::of(&[random(), random(), random()].concat()).0
}

/// Not in a log by accident.
impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinToken").field("authority", &self.authority).finish_non_exhaustive()
    }
}

impl fmt::Display for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}{}", self.authority.hex(), Digest(self.secret).hex())
    }
}

impl FromStr for JoinToken {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = || {
            let hex = text.trim().strip_prefix(PREFIX).filter(|hex| hex.len() == 128 && hex.is_ascii())?;
            let digest = |hex: &str| format!("sha256:{hex}").parse::<Digest>().ok();
            Some(Self { authority: digest(&hex[..64])?, secret: digest(&hex[64..])?.0 })
        };
        parts().ok_or_else(|| {
            format!("this is no token to join with; expected `{PREFIX}` and 128 hexadecimal digits, as `tickhost cluster token` prints it")
        })
    }
}

/// Asks a node of a cluster something that it answers to the holder of a token.
///
/// # Errors
/// A sentence: nobody there, another cluster, or a refusal.
pub async fn ask_with_token<Q: Serialize, A: DeserializeOwned>(
    address: &str,
    token: &JoinToken,
    path: &str,
    question: &Q,
) -> Result<A, String> {
    let asked = tokio::time::timeout(WITHIN, exchange(address, token, path, question));
    asked.await.map_err(|_| format!("{address} does not answer within {WITHIN:?}"))?
}

async fn exchange<Q: Serialize, A: DeserializeOwned>(
    address: &str,
    token: &JoinToken,
    path: &str,
    question: &Q,
) -> Result<A, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = Arc::new(ByFingerprint { authority: token.authority, provider: provider.clone() });
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let tcp = TcpStream::connect(address).await.map_err(|e| format!("connect to {address}: {e}"))?;
    // Its number is not known yet, so its name is not either.
    let name = ServerName::try_from("tickhost").map_err(|e| e.to_string())?;
    let tls = TlsConnector::from(Arc::new(config)).connect(name, tcp).await;
    let tls = tls.map_err(|e| format!("{address} is no node of the cluster that the token is for: {e}"))?;
    let mut sender = handshake(TokioIo::new(tls)).await.map_err(|e| format!("speak to {address}: {e}"))?;
    let body = codec::encode(question).map_err(|e| e.to_string())?;
    let request = Request::builder().method(Method::POST).uri(format!("https://node{path}")).body(full(body));
    let response = sender.send_request(request.map_err(|e| e.to_string())?).await;
    let response = response.map_err(|e| format!("{address} did not answer: {e}"))?;
    let status = response.status();
    let bytes = response.into_body().collect().await.map_err(|e| format!("{address} did not answer: {e}"))?.to_bytes();
    if status != StatusCode::OK {
        return Err(format!("{address} refuses: {}", String::from_utf8_lossy(&bytes)));
    }
    codec::decode(&bytes).map_err(|e| e.to_string())
}

/// Trusts whoever shows a certificate of the authority with that fingerprint.
#[derive(Debug)]
struct ByFingerprint {
    authority: Digest,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for ByFingerprint {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let unknown = || rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer);
        let authority = intermediates.iter().find(|der| Digest::of(der) == self.authority).ok_or_else(unknown)?;
        let anchor = webpki::anchor_from_trusted_cert(authority).map_err(|_| unknown())?;
        let certificate = webpki::EndEntityCert::try_from(end_entity).map_err(|_| unknown())?;
        certificate
            .verify_for_usage(
                self.provider.signature_verification_algorithms.all,
                &[anchor],
                &[],
                now,
                webpki::KeyUsage::server_auth(),
                None,
                None,
            )
            .map_err(|e| rustls::Error::General(e.to_string()))?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_as_it_is_written_and_does_not_show_its_secret() {
        let token = JoinToken::new(Digest([1; 32]));
        assert_eq!(token.to_string().parse::<JoinToken>().as_ref(), Ok(&token));
        assert!(!format!("{token:?}").contains(&Digest(token.secret).hex()));
        assert_ne!(JoinToken::new(Digest([1; 32])).secret, token.secret);
        for wrong in ["", "tickhost-join-1-", "tickhost-join-1-zz", "sha256:00", &token.to_string()[..140]] {
            assert!(wrong.parse::<JoinToken>().is_err(), "{wrong}");
        }
    }
}
