//! Errors as clients see them (RFC 9457). Domain errors are mapped here, once.

use axum::{
    http::{HeaderName, HeaderValue, Method, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use tickhost_executor::ExecutorError;
use tickhost_ledger::{Refusal, ids::NameError};
use tickhost_replica::ProposeError;
use tickhost_sandbox::{AdmitError, CodeError};

use crate::{backup::TakeError, cluster::MemberError, jobs::ChangeError};

const PROBLEM_JSON: &str = "application/problem+json";
/// Nothing was done: whoever leads may be asked again.
const NO_LEADER: &str = "no-leader";
/// Says so where only the head of a response is looked at.
pub(super) const NOT_TAKEN: HeaderName = HeaderName::from_static("tickhost-not-taken");
/// Bytes of a text that the framework answers with; its own are a line.
const FRAMEWORK_TEXT_MAX: usize = 4 << 10;

/// An error of the API.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// The HTTP status.
    pub status: u16,
    /// A short name of the kind of error, the same for ever.
    pub title: String,
    /// What was found, what was expected, and what to do.
    pub detail: String,
}

impl Problem {
    fn new(status: StatusCode, title: &str, detail: impl ToString) -> Self {
        Self { status: status.as_u16(), title: title.to_owned(), detail: detail.to_string() }
    }

    pub(crate) fn not_found(detail: impl ToString) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not-found", detail)
    }

    pub(crate) fn not_allowed() -> Self {
        let detail = "this path does not take that method; GET shows, PUT stores, POST acts, DELETE deletes";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", detail)
    }

    pub(super) fn unreadable(detail: impl ToString) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad-request", detail)
    }

    pub(crate) fn unauthorized(detail: impl ToString) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", detail)
    }

    pub(crate) fn forbidden(detail: impl ToString) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", detail)
    }

    /// Whether somebody was refused what they asked for: to change something, or to see what is not theirs.
    pub(super) fn is_refusal_of(&self, method: &Method) -> bool {
        match self.status {
            401 | 403 => true,
            400..=499 => method != Method::GET && method != Method::HEAD,
            _ => false,
        }
    }

    pub(crate) fn invalid(detail: impl ToString) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", detail)
    }

    pub(crate) fn full(detail: impl ToString) -> Self {
        Self::new(StatusCode::INSUFFICIENT_STORAGE, "disk-full", detail)
    }

    pub(crate) fn conflict(detail: impl ToString) -> Self {
        Self::new(StatusCode::CONFLICT, "conflict", detail)
    }

    pub(crate) fn unreachable(detail: impl ToString) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", detail)
    }

    pub(crate) fn fault(detail: impl ToString) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "fault", detail)
    }
}

/// Errors of the framework itself (a query that cannot be read, a body that is too large) in the same form as ours.
pub(super) async fn every_error_is_a_problem(response: Response) -> Response {
    let status = response.status();
    let is_problem = response.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == PROBLEM_JSON);
    if is_problem || !(status.is_client_error() || status.is_server_error()) {
        return response;
    }
    let title = status.canonical_reason().unwrap_or("error").to_lowercase().replace(' ', "-");
    let said = axum::body::to_bytes(response.into_body(), FRAMEWORK_TEXT_MAX).await.unwrap_or_default();
    let detail = match status {
        StatusCode::PAYLOAD_TOO_LARGE => {
            "the body is too large: a component may have 128 MiB, everything else 2 MiB".to_owned()
        }
        _ => String::from_utf8_lossy(&said).into_owned(),
    };
    Problem::new(status, &title, detail).into_response()
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let mut response = (status, [(header::CONTENT_TYPE, PROBLEM_JSON)], body).into_response();
        if self.title == NO_LEADER {
            response.headers_mut().insert(NOT_TAKEN, HeaderValue::from_static("there was no leader; ask again"));
        }
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response.extensions_mut().insert(self);
        response
    }
}

impl From<NameError> for Problem {
    fn from(error: NameError) -> Self {
        Self::invalid(error)
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        match &refusal {
            Refusal::NoJob(_)
            | Refusal::NoComponent(_)
            | Refusal::NoLaunch(_)
            | Refusal::NoNode(_)
            | Refusal::NoAccess(_)
            | Refusal::NotAtLarge { .. } => Self::not_found(refusal),
            Refusal::OverQuota { .. } => Self::new(StatusCode::UNPROCESSABLE_ENTITY, "over-quota", refusal),
            Refusal::Meaningless(_) => Self::invalid(refusal),
            _ => Self::new(StatusCode::CONFLICT, "conflict", refusal),
        }
    }
}

impl From<ProposeError> for Problem {
    fn from(error: ProposeError) -> Self {
        let title = match error {
            ProposeError::NotLeader { .. } => NO_LEADER,
            ProposeError::Unknown
            | ProposeError::Refused(_)
            | ProposeError::Unreachable(_)
            | ProposeError::Stopped(_) => "unavailable",
        };
        Self::new(StatusCode::SERVICE_UNAVAILABLE, title, error)
    }
}

impl From<MemberError> for Problem {
    fn from(error: MemberError) -> Self {
        match error {
            MemberError::Refused(refusal) => refusal.into(),
            MemberError::Ledger(error) => error.into(),
            MemberError::Alone | MemberError::Other(_) => Self::conflict(error),
        }
    }
}

impl From<TakeError> for Problem {
    fn from(error: TakeError) -> Self {
        match error {
            TakeError::Nowhere(_) => Self::conflict(error),
            TakeError::Failed(error) => Self::unreachable(error),
        }
    }
}

impl From<ChangeError> for Problem {
    fn from(error: ChangeError) -> Self {
        match error {
            ChangeError::Refused(refusal) => refusal.into(),
            ChangeError::Ledger(error) => error.into(),
            ChangeError::Full(why) => Self::full(why),
            ChangeError::Held(why) => Self::new(StatusCode::SERVICE_UNAVAILABLE, "clock-held", why),
            ChangeError::Schedule(_) | ChangeError::Invalid(_) => Self::invalid(error),
        }
    }
}

impl From<AdmitError> for Problem {
    fn from(error: AdmitError) -> Self {
        match error {
            AdmitError::Code(error) => error.into(),
            AdmitError::Refused(_) | AdmitError::Memory { .. } => Self::invalid(error),
        }
    }
}

impl From<ExecutorError> for Problem {
    fn from(error: ExecutorError) -> Self {
        Self::fault(error)
    }
}

impl From<CodeError> for Problem {
    fn from(error: CodeError) -> Self {
        match error {
            CodeError::Write { .. } => Self::full(error),
            other => Self::fault(other),
        }
    }
}
