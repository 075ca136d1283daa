//! The HTTP API: JSON in and out, errors as `application/problem+json`.

mod access;
mod forward;
mod headroom;
mod listen;
mod members;
mod namespaces;
mod problem;
mod routes;
mod tokens;
mod views;

pub use headroom::Headroom;
pub use listen::{Listener, serve};
pub use members::NodeView;
pub(crate) use members::node_views;
pub use namespaces::NamespaceView;
pub use problem::Problem;
pub use routes::router;
pub use tokens::{AccessView, AuditView, WhoView};
pub use views::{JobView, LaunchView, StatusView};
