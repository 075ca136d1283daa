//! The API's client, on which the command line is built.

use std::path::{Path, PathBuf};

use reqwest::{Certificate, Method, Response, StatusCode, Url};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{
    api::Problem,
    cli::CliError,
    credentials::{self, Credentials},
};

/// A host, and what is shown to it.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    /// Its API.
    pub(crate) url: String,
    /// Who asks, where it wants to know.
    pub(crate) token: Option<String>,
    /// The authority of its certificate (PEM), where it is none that this machine knows.
    pub(crate) ca: Option<PathBuf>,
}

impl Target {
    /// With what the environment has for it, or what was kept when somebody logged in.
    ///
    /// # Errors
    /// Kept tokens that cannot be read.
    pub(crate) fn of(url: &str, ca: Option<PathBuf>) -> Result<Self, CliError> {
        let url = url.trim_end_matches('/').to_owned();
        if let Some(token) = std::env::var("TICKHOST_TOKEN").ok().filter(|token| !token.is_empty()) {
            return Ok(Self { url, token: Some(token), ca });
        }
        let kept = credentials::path().map(|path| Credentials::read(&path)).transpose().map_err(CliError::failed)?;
        let kept = kept.as_ref().and_then(|kept| kept.of(&url));
        let ca = ca.or_else(|| kept.and_then(|kept| kept.ca.clone()));
        Ok(Self { url, token: kept.map(|kept| kept.token.clone()), ca })
    }
}

/// Speaks to a host.
pub(crate) struct Client {
    http: reqwest::Client,
    target: Target,
}

impl Client {
    pub(crate) fn new(target: &Target) -> Result<Self, CliError> {
        // A second installation is no fault: the first one is the same provider.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let is_plain = !target.url.starts_with("https://");
        if is_plain && target.token.is_some() && !is_here(&target.url) {
            return Err(CliError::refused(format!(
                "`{}` is on another machine and speaks no TLS: anybody on the way could read your token; write `https://`",
                target.url
            )));
        }
        let builder = reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none());
        let builder = match &target.ca {
            Some(path) => builder.tls_certs_only(authority(path)?),
            // To read those that the machine knows takes longer than most requests.
            None if is_plain => builder.tls_certs_only(std::iter::empty()),
            None => builder,
        };
        let http = builder.build().map_err(|e| CliError::failed(format!("set up the client: {e}")))?;
        Ok(Self { http, target: target.clone() })
    }

    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str, query: &[(&str, String)]) -> Result<T, CliError> {
        let request = self.request(Method::GET, path).query(query);
        self.answer(request).await
    }

    pub(crate) async fn post<B: Serialize>(&self, path: &str, body: &B) -> Result<Value, CliError> {
        self.answer(self.request(Method::POST, path).json(body)).await
    }

    pub(crate) async fn put<B: Serialize, T: DeserializeOwned>(&self, path: &str, body: &B) -> Result<T, CliError> {
        self.answer(self.request(Method::PUT, path).json(body)).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Result<Value, CliError> {
        self.answer(self.request(Method::DELETE, path)).await
    }

    pub(crate) async fn upload<T: DeserializeOwned>(&self, path: &str, bytes: Vec<u8>) -> Result<T, CliError> {
        self.answer(self.request(Method::POST, path).body(bytes)).await
    }

    fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.target.url));
        match &self.target.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    async fn answer<T: DeserializeOwned>(&self, request: reqwest::RequestBuilder) -> Result<T, CliError> {
        let response = request.send().await.map_err(|e| {
            if e.is_builder() {
                let message = format!("`{}` is no URL of a host; expected e.g. http://127.0.0.1:7878", self.target.url);
                return CliError::refused(message);
            }
            let e = cause(&e);
            CliError::unreachable(format!(
                "no host answers at {}: {e}; start one with `tickhost dev`, or name one with --url or TICKHOST_URL",
                self.target.url
            ))
        })?;
        if response.status().is_success() {
            return response.json().await.map_err(|e| CliError::failed(format!("read the host's answer: {e}")));
        }
        Err(problem(response).await)
    }
}

/// Whether that URL is of this machine.
fn is_here(url: &str) -> bool {
    let Ok(url) = Url::parse(url) else { return false };
    let Some(host) = url.host_str() else { return false };
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

fn authority(path: &Path) -> Result<Vec<Certificate>, CliError> {
    let failed = |why: String| CliError::refused(format!("`--ca {}`: {why}", path.display()));
    let pem = std::fs::read(path).map_err(|e| failed(e.to_string()))?;
    let certificates = Certificate::from_pem_bundle(&pem).map_err(|e| failed(e.to_string()))?;
    if certificates.is_empty() {
        return Err(failed("there is no certificate in it (PEM)".into()));
    }
    Ok(certificates)
}

/// What an error rests on: what is wrong with a certificate is three errors down.
fn cause(error: &reqwest::Error) -> String {
    let errors = std::iter::successors(Some(error as &dyn std::error::Error), |error| error.source());
    errors.last().map_or_else(String::new, ToString::to_string)
}

async fn problem(response: Response) -> CliError {
    let status = response.status();
    let detail = match response.json::<Problem>().await {
        Ok(problem) => problem.detail,
        Err(_) => format!("the host answered {status}"),
    };
    match status {
        StatusCode::UNPROCESSABLE_ENTITY | StatusCode::BAD_REQUEST => CliError::refused(detail),
        StatusCode::SERVICE_UNAVAILABLE => CliError::unreachable(detail),
        _ => CliError::failed(detail),
    }
}
