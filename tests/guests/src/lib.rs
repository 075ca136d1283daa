//! A job that does what a test asks for: its `config` says what, under `do`.

use std::{io::Write, time::Duration};

use tickhost_job::{Failure, Outcome, Tick, config, http, kv};

fn run(tick: &Tick) -> Outcome<String> {
    match text("do")?.as_str() {
        "noop" => Ok("ok".into()),
        "clock" => clock(),
        "keys" => keys(tick),
        "effect" => effect(tick),
        "calls" => calls(),
        "manykeys" => {
            (1..=number("count")?).try_for_each(|n| tick.key(&n.to_string()).map(drop))?;
            Ok("made".into())
        }
        "kvsets" => {
            let value = vec![b'x'; number("bytes")?.try_into()?];
            for n in 1..=number("count")? {
                kv::set(&tick.key(&n.to_string())?, "name", &value)?;
            }
            Ok("set".into())
        }
        "kvcount" => Ok(kv::increment(&tick.key("count")?, &text("name")?, 1)?.to_string()),
        "spin" => spin(),
        "grow" => grow(),
        "hold" => {
            let held = std::hint::black_box(vec![1_u8; number("bytes")?.try_into()?]);
            std::thread::sleep(Duration::from_millis(number("ms")?));
            Ok(format!("held {}", held.len()))
        }
        "chatty" => chatty(),
        "sleepy" => {
            std::thread::sleep(Duration::from_millis(number("ms")?));
            Ok("awake".into())
        }
        "sockets" => Ok(sockets()),
        "fail" => fail(),
        other => Err(Failure::new(format!("the config `do = {other}` is none that is known"))),
    }
}

tickhost_job::job!(run);

fn text(name: &str) -> Outcome<String> {
    config::get(name).ok_or_else(|| Failure::new(format!("the config lacks `{name}`")))
}

fn number(name: &str) -> Outcome<u64> {
    Ok(text(name)?.parse()?)
}

/// Microseconds since 1970, read before anything else is done.
fn clock() -> Outcome<String> {
    Ok(std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_micros().to_string())
}

fn keys(tick: &Tick) -> Outcome<String> {
    let key = tick.key("a")?;
    let previous = tick.previous().map_or("none".into(), |instant| instant.seconds.to_string());
    let parts = [
        key.text(),
        key.child("b")?.text(),
        tick.launch_id(),
        tick.attempt().to_string(),
        tick.scheduled_local(),
        previous,
    ];
    Ok(parts.join("|"))
}

/// Sends one request for each of `count` keys, with the launch's name in it.
fn effect(tick: &Tick) -> Outcome<String> {
    let key = tick.key("effect")?;
    let mut statuses = Vec::new();
    for n in 1..=number("count")? {
        let body = format!(r#"{{"launch":"{}","n":{n}}}"#, tick.launch_id().split('+').next().unwrap_or_default());
        let answer = http::send(&key.child(&n.to_string())?, &http::post_json(text("url")?, body))?;
        statuses.push(format!("{}{}", answer.status, if answer.replayed { " replayed" } else { "" }));
    }
    Ok(statuses.join(", "))
}

fn calls() -> Outcome<String> {
    let count = number("count")?;
    for _ in 0..count {
        http::read(&http::get(text("url")?))?;
    }
    Ok(format!("{count} calls"))
}

fn spin() -> ! {
    loop {
        std::hint::black_box(());
    }
}

fn grow() -> Outcome<String> {
    let mut chunks = Vec::new();
    loop {
        chunks.push(std::hint::black_box(vec![1_u8; 1 << 20]));
    }
}

/// Lines of 64 bytes, a last line, and a line without its end.
fn chatty() -> Outcome<String> {
    let mut out = std::io::stdout().lock();
    let line = [b'x'; 63];
    for _ in 0..number("bytes")? / 64 {
        out.write_all(&line)?;
        out.write_all(b"\n")?;
    }
    writeln!(out, "the end")?;
    out.flush()?;
    let mut err = std::io::stderr().lock();
    err.write_all(b"partial")?;
    err.flush()?;
    Ok("said".into())
}

/// Every way to the network that WASI has beside HTTP.
fn sockets() -> String {
    use wasip2::sockets::{
        instance_network::instance_network, ip_name_lookup::resolve_addresses, network::IpAddressFamily,
        tcp_create_socket::create_tcp_socket, udp_create_socket::create_udp_socket,
    };
    let tcp = create_tcp_socket(IpAddressFamily::Ipv4).err();
    let udp = create_udp_socket(IpAddressFamily::Ipv6).err();
    let lookup = resolve_addresses(&instance_network(), "db.example.com").err();
    format!("{tcp:?} {udp:?} {lookup:?}")
}

fn fail() -> Outcome<String> {
    match text("how")?.as_str() {
        "failure" => Err(Failure::new("it failed as configured")),
        "retry" => Err(Failure::retry("it failed as configured and asks for another attempt")),
        "panic" => panic!("it panicked as configured"),
        "exit0" => std::process::exit(0),
        "exit7" => std::process::exit(7),
        "trap" => std::process::abort(),
        "stack" => Ok(deeper(1).to_string()),
        other => Err(Failure::new(format!("the config `how = {other}` is none that is known"))),
    }
}

/// Recurses until the stack is used up.
#[allow(unconditional_recursion)]
fn deeper(n: u64) -> u64 {
    std::hint::black_box(deeper(std::hint::black_box(n + 1)) + n)
}
