//! The HTTP API: JSON in and out, errors as `application/problem+json`.

mod problem;
mod routes;
mod views;

pub use problem::Problem;
pub use routes::serve;
pub use views::{JobView, LaunchView, StatusView};
