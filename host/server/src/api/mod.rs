//! The HTTP API: JSON in and out, errors as `application/problem+json`.

mod forward;
mod headroom;
mod members;
mod namespaces;
mod problem;
mod routes;
mod views;

pub use headroom::Headroom;
pub use members::NodeView;
pub(crate) use members::node_views;
pub use namespaces::NamespaceView;
pub use problem::Problem;
pub use routes::{router, serve};
pub use views::{JobView, LaunchView, StatusView};
