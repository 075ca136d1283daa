//! The API that the examples speak to: a recorder at the address that their manifests name.

use support::recorder::{Behaviour, Recorder, data_files};

/// As in `examples/*/tickhost.toml`.
const PORT: u16 = 8787;

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let recorder =
        Recorder::start_on(PORT, Behaviour { customers: 8, files: data_files(), ..Behaviour::default() }).await?;
    println!("{} records what it receives; end it with ctrl-c", recorder.url());
    let mut shown = 0;
    loop {
        let received = recorder.received();
        for request in &received[shown..] {
            println!("{} {} {} {}", request.method, request.path, request.key, request.body);
        }
        shown = received.len();
        tokio::select! {
            _ = tokio::signal::ctrl_c() => return Ok(()),
            () = tokio::time::sleep(std::time::Duration::from_millis(200)) => {}
        }
    }
}
