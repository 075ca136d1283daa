//! A program that knows nothing of tickhost: its arguments say what it does.

use std::{io::Write, process::ExitCode};

use wasip2::{
    cli::exit::exit_with_code,
    http::{
        outgoing_handler::handle,
        types::{Fields, Method, OutgoingBody, OutgoingRequest, Scheme},
    },
};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    let words: Vec<&str> = args.iter().skip(1).map(String::as_str).collect();
    match words.as_slice() {
        ["tell"] => tell(&args),
        ["exit", code] => std::process::exit(code.parse().expect("a number")),
        ["exit-with-code", code] => exit_with_code(code.parse().expect("a number")),
        ["fail"] => return ExitCode::FAILURE,
        ["partial-and-trap"] => {
            print!("partial");
            std::io::stdout().flush().expect("standard output");
            std::process::abort();
        }
        // Method, URL, body, and a key of its own or "-".
        ["send", requests @ ..] => requests.chunks(4).for_each(|request| match request {
            [method, url, body, key] => println!("{}", send(method, url, body.as_bytes(), key)),
            _ => panic!("a request is four words"),
        }),
        other => panic!("{other:?} is nothing that it does"),
    }
    ExitCode::SUCCESS
}

fn tell(args: &[String]) {
    println!("args {args:?}");
    std::env::vars().for_each(|(name, value)| println!("env {name}={value}"));
    println!("files {:?}", std::fs::read_dir("/").map(Iterator::count).map_err(|error| error.kind()));
    eprintln!("and this is said beside it");
}

/// The status and the body, or WASI's error.
fn send(method: &str, url: &str, body: &[u8], key: &str) -> String {
    let headers = Fields::new();
    if key != "-" {
        headers.append("idempotency-key", key.as_bytes()).expect("a header that is allowed");
    }
    let (scheme, rest) = url.split_once("://").expect("a URL");
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let request = OutgoingRequest::new(headers);
    let method = if method == "GET" { Method::Get } else { Method::Post };
    request.set_method(&method).expect("a method");
    request.set_scheme(Some(&if scheme == "https" { Scheme::Https } else { Scheme::Http })).expect("a scheme");
    request.set_authority(Some(authority)).expect("an authority");
    request.set_path_with_query(Some(path)).expect("a path");
    let outgoing = request.body().expect("a body");
    let answer = match handle(request, None) {
        Ok(answer) => answer,
        Err(error) => return format!("refused {error:?}"),
    };
    let stream = outgoing.write().expect("a stream");
    for chunk in body.chunks(4_096) {
        if stream.blocking_write_and_flush(chunk).is_err() {
            break;
        }
    }
    drop(stream);
    let _ = OutgoingBody::finish(outgoing, None);
    answer.subscribe().block();
    match answer.get().expect("it is there").expect("it is asked for once") {
        Ok(response) => format!("status {}", response.status()),
        Err(error) => format!("failed {error:?}"),
    }
}
