//! WASI: clocks, random numbers, arguments, environment and the standard streams work; there are no files and no
//! sockets. JavaScript and Python components import all of it whether they use it or not, so it is linked, and
//! what is not offered refuses at the call, by name in the run's output. Files need no refusal: without a preopened
//! folder there is no call that could name one.

use wasmtime::{
    StoreContextMut,
    component::{Linker, Resource},
};
use wasmtime_wasi::p2::{
    Network,
    bindings::sockets::{
        ip_name_lookup::ResolveAddressStream,
        network::{ErrorCode, IpAddressFamily},
        tcp::TcpSocket,
        udp::UdpSocket,
    },
};
use wasmtime_wasi::{WasiCtx, WasiCtxBuilder, WasiCtxView, WasiView};
use wasmtime_wasi_http::{WasiHttpCtxView, WasiHttpView};

use crate::{
    output::{Output, Stream},
    run::{RunRequest, RunState},
};

/// Bytes of randomness in one call. Arbitrary: the host makes them.
const RANDOM_BYTES_MAX: u64 = 1 << 20;

/// Links the ways to a socket and to name lookup over again, so that what refuses also says what to call instead:
/// WASI's own refusal is a bare error code.
pub(crate) fn refuse_sockets(linker: &mut Linker<RunState>) -> wasmtime::Result<()> {
    const DENIED: ErrorCode = ErrorCode::AccessDenied;
    linker.allow_shadowing(true);
    linker.instance("wasi:sockets/tcp-create-socket@0.2.12")?.func_wrap(
        "create-tcp-socket",
        |store, (_family,): (IpAddressFamily,)| {
            refuse(&store, "a TCP socket");
            Ok((Err::<Resource<TcpSocket>, _>(DENIED),))
        },
    )?;
    linker.instance("wasi:sockets/udp-create-socket@0.2.12")?.func_wrap(
        "create-udp-socket",
        |store, (_family,): (IpAddressFamily,)| {
            refuse(&store, "a UDP socket");
            Ok((Err::<Resource<UdpSocket>, _>(DENIED),))
        },
    )?;
    linker.instance("wasi:sockets/ip-name-lookup@0.2.12")?.func_wrap(
        "resolve-addresses",
        |store, (_network, name): (Resource<Network>, String)| {
            refuse(&store, &format!("a lookup of `{name}`"));
            Ok((Err::<Resource<ResolveAddressStream>, _>(DENIED),))
        },
    )?;
    linker.allow_shadowing(false);
    Ok(())
}

fn refuse(store: &StoreContextMut<'_, RunState>, what: &str) {
    store.data().output.record(&format!(
        "WARN refused {what} (wasi:sockets): what it sends would carry no key; call tickhost:job/http instead"
    ));
}

/// The name of the variable that carries a key for all of a run's work.
const KEY: &str = "TICKHOST_KEY";

pub(crate) fn context(request: &RunRequest, output: &Output) -> WasiCtx {
    WasiCtxBuilder::new()
        .arg(&request.run.launch.job.name)
        .args(&request.args)
        .envs(&request.env.iter().collect::<Vec<_>>())
        .envs(&of_the_tick(request))
        .stdout(output.capture(Stream::Stdout))
        .stderr(output.capture(Stream::Stderr))
        .allow_tcp(false)
        .allow_udp(false)
        .allow_ip_name_lookup(false)
        .max_random_size(RANDOM_BYTES_MAX)
        .build()
}

/// What `tickhost:job/ticks` says, for programs that know nothing of it.
fn of_the_tick(request: &RunRequest) -> Vec<(&'static str, String)> {
    let launch = &request.run.launch;
    let tick = [
        ("TICKHOST_NAMESPACE", launch.job.namespace.clone()),
        ("TICKHOST_JOB", launch.job.name.clone()),
        ("TICKHOST_LAUNCH", launch.to_string()),
        ("TICKHOST_SCHEDULED", launch.tick.to_string()),
        ("TICKHOST_SCHEDULED_LOCAL", request.local.clone()),
        ("TICKHOST_ATTEMPT", request.run.attempt.to_string()),
        // The first part is empty, as no label of a guest can be.
        (KEY, request.keys.key(&[String::new(), KEY.to_owned()]).to_string()),
    ];
    let previous = request.previous.map(|previous| ("TICKHOST_PREVIOUS", previous.to_string()));
    tick.into_iter().chain(previous).collect()
}

impl WasiView for RunState {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

impl WasiHttpView for RunState {
    fn http(&mut self) -> WasiHttpCtxView<'_> {
        WasiHttpCtxView { hooks: &mut self.wasi_http_hooks, table: &mut self.table, ctx: &mut self.wasi_http }
    }
}
