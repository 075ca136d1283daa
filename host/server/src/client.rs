//! The API's client, on which the command line is built.

use reqwest::{Method, Response, StatusCode};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{api::Problem, cli::CliError};

/// Speaks to a host.
pub(crate) struct Client {
    http: reqwest::Client,
    url: String,
    by: String,
}

impl Client {
    pub(crate) fn new(url: &str) -> Result<Self, CliError> {
        // A second installation is no fault: the first one is the same provider.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder()
            .no_proxy()
            .tls_certs_only(std::iter::empty())
            .build()
            .map_err(|e| CliError::failed(e.to_string()))?;
        let by = std::env::var("USER").unwrap_or_else(|_| "unknown".into());
        Ok(Self { http, url: url.trim_end_matches('/').to_owned(), by })
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
        self.http.request(method, format!("{}{path}", self.url)).header("tickhost-by", &self.by)
    }

    async fn answer<T: DeserializeOwned>(&self, request: reqwest::RequestBuilder) -> Result<T, CliError> {
        let response = request.send().await.map_err(|e| {
            if e.is_builder() {
                let message = format!("`{}` is no URL of a host; expected e.g. http://127.0.0.1:7878", self.url);
                return CliError::refused(message);
            }
            CliError::unreachable(format!(
                "no host answers at {}: {e}; start one with `tickhost dev`, or name one with --url or TICKHOST_URL",
                self.url
            ))
        })?;
        if response.status().is_success() {
            return response.json().await.map_err(|e| CliError::failed(format!("read the host's answer: {e}")));
        }
        Err(problem(response).await)
    }
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
