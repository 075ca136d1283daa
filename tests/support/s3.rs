//! An S3-compatible store on loopback that keeps its objects in a folder.

use std::{net::SocketAddr, path::Path};

use hyper_util::rt::TokioIo;
use s3s::{auth::SimpleAuth, service::S3ServiceBuilder};
use s3s_fs::FileSystem;
use tokio::net::TcpListener;

/// The one bucket that it has.
pub const BUCKET: &str = "tickhost";
const KEY_ID: &str = "the-key";
const SECRET: &str = "the-secret";

/// Starts one in a folder. It ends with the runtime.
///
/// # Panics
/// Where it cannot be started.
pub async fn start(dir: &Path) -> SocketAddr {
    std::fs::create_dir_all(dir.join(BUCKET)).expect("make the bucket");
    let mut service = S3ServiceBuilder::new(FileSystem::new(dir).expect("open the folder"));
    service.set_auth(SimpleAuth::from_single(KEY_ID, SECRET));
    let service = service.build();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("listen");
    let address = listener.local_addr().expect("its address");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = service.clone();
            tokio::spawn(async move {
                let _ =
                    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    address
}

/// What a program runs under that is to have the store's credentials in its environment.
pub fn with_credentials() -> Vec<String> {
    let key_id = format!("AWS_ACCESS_KEY_ID={KEY_ID}");
    vec!["env".into(), key_id, format!("AWS_SECRET_ACCESS_KEY={SECRET}")]
}
