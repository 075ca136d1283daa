//! WASI: clocks, random numbers and the standard streams work; there are no files, no environment and no
//! sockets. JavaScript and Python components import all of it whether they use it or not, so it is linked, and
//! what is not offered refuses at the call, by name in the run's output. Files need no refusal: without a preopened
//! folder there is no call that could name one.

use std::future::Future;

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
use wasmtime_wasi_http::{Error as HttpError, RequestOptions, WasiBody, WasiHttpCtxView, WasiHttpHooks, WasiHttpView};

use crate::{
    output::{Output, Stream},
    run::RunState,
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

pub(crate) fn context(output: &Output) -> WasiCtx {
    WasiCtxBuilder::new()
        .stdout(output.capture(Stream::Stdout))
        .stderr(output.capture(Stream::Stderr))
        .allow_tcp(false)
        .allow_udp(false)
        .allow_ip_name_lookup(false)
        .max_random_size(RANDOM_BYTES_MAX)
        .build()
}

impl WasiView for RunState {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

/// `wasi:http` would send without a key, so it is refused; the guest's log says what to call instead.
pub(crate) struct RefuseHttp {
    output: Output,
}

impl RefuseHttp {
    pub(crate) fn new(output: &Output) -> Self {
        Self { output: output.clone() }
    }
}

type Sent = Box<dyn Future<Output = Result<(), HttpError>> + Send>;

impl WasiHttpHooks for RefuseHttp {
    fn send_request(
        &mut self,
        request: http::Request<WasiBody>,
        _options: Option<RequestOptions>,
        _sent: Sent,
    ) -> Box<dyn Future<Output = Result<(http::Response<WasiBody>, Sent), HttpError>> + Send> {
        let text = format!(
            "WARN refused wasi:http {} {}: it carries no key; call tickhost:job/http instead",
            request.method(),
            request.uri()
        );
        self.output.record(&text);
        Box::new(async { Err(HttpError::HttpRequestDenied) })
    }
}

impl WasiHttpView for RunState {
    fn http(&mut self) -> WasiHttpCtxView<'_> {
        WasiHttpCtxView { hooks: &mut self.refuse_http, table: &mut self.table, ctx: &mut self.wasi_http }
    }
}
