//! wasmtime with nothing around it: the interface answered as shortly as can be.

use std::path::Path;

use wasmtime::{
    Engine, Store, UpdateDeadline,
    component::{Component, HasSelf, Linker, Resource, ResourceTable},
};
use wasmtime_wasi::{WasiCtx, WasiCtxBuilder, WasiCtxView, WasiView};
use wasmtime_wasi_http::{
    Error as HttpError, RequestOptions, WasiBody, WasiHttpCtx, WasiHttpCtxView, WasiHttpHooks, WasiHttpView,
};

use bindings::{
    JobPre,
    tickhost::job::{config, errors, http, kv, logging, ticks},
};

mod bindings {
    #![allow(missing_docs, unreachable_pub, reason = "generated")]

    wasmtime::component::bindgen!({
        path: "../wit",
        world: "job",
        imports: { "tickhost:job/http": async | trappable, "tickhost:job/kv": async | trappable, default: trappable },
        exports: { default: async },
    });
}

type Call<T> = wasmtime::Result<Result<T, errors::Error>>;

pub(super) struct Bare {
    engine: Engine,
    pre: JobPre<State>,
}

pub(crate) struct State {
    wasi: WasiCtx,
    http: WasiHttpCtx,
    hooks: NoHttp,
    table: ResourceTable,
}

/// JavaScript imports `wasi:http`; nothing here calls it.
struct NoHttp;

type Sent = Box<dyn Future<Output = Result<(), HttpError>> + Send>;

impl WasiHttpHooks for NoHttp {
    fn send_request(
        &mut self,
        _request: ::http::Request<WasiBody>,
        _options: Option<RequestOptions>,
        _sent: Sent,
    ) -> Box<dyn Future<Output = Result<(::http::Response<WasiBody>, Sent), HttpError>> + Send> {
        Box::new(async { Err(HttpError::HttpRequestDenied) })
    }
}

impl WasiHttpView for State {
    fn http(&mut self) -> WasiHttpCtxView<'_> {
        WasiHttpCtxView { hooks: &mut self.hooks, table: &mut self.table, ctx: &mut self.http }
    }
}

impl Bare {
    /// Compiled and mapped as the sandbox does it, so that only what is around the run differs.
    pub(super) fn new(engine: &Engine, bytes: &[u8], dir: &Path) -> Self {
        let code = dir.join("bare.cwasm");
        let compiled = engine.precompile_component(bytes).expect("a component");
        std::fs::write(&code, compiled).expect("write compiled code");
        // SAFETY: this engine wrote the file a line above.
        #[allow(unsafe_code, reason = "wasmtime maps compiled code only through an unsafe function")]
        let component = unsafe { Component::deserialize_file(engine, &code) }.expect("compiled code");
        // Mapped, it needs its name no more.
        std::fs::remove_file(&code).expect("remove compiled code");
        let mut linker = Linker::new(engine);
        wasmtime_wasi::p2::add_to_linker_async(&mut linker).expect("WASI");
        bindings::Job::add_to_linker::<_, HasSelf<_>>(&mut linker, |state| state).expect("the interface");
        wasmtime_wasi_http::p2::add_only_http_to_linker_async(&mut linker).expect("wasi:http");
        let pre = linker.instantiate_pre(&component).and_then(JobPre::new).expect("a job");
        Self { engine: engine.clone(), pre }
    }

    pub(super) async fn run(&self) {
        let wasi = WasiCtxBuilder::new().build();
        let state = State { wasi, http: WasiHttpCtx::new(), hooks: NoHttp, table: ResourceTable::new() };
        let mut store = Store::new(&self.engine, state);
        store.set_epoch_deadline(1);
        store.epoch_deadline_callback(|_| Ok(UpdateDeadline::Yield(1)));
        let job = self.pre.instantiate_async(&mut store).await.expect("an instance");
        let ended = job.tickhost_job_entry().call_run(&mut store, Resource::new_borrow(1)).await;
        let _ = std::hint::black_box(ended);
    }
}

impl WasiView for State {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

impl errors::Host for State {}
impl ticks::Host for State {}

impl ticks::HostTick for State {
    fn namespace(&mut self, _: Resource<ticks::Tick>) -> wasmtime::Result<String> {
        Ok("bench".into())
    }

    fn job(&mut self, _: Resource<ticks::Tick>) -> wasmtime::Result<String> {
        Ok("sandbox".into())
    }

    fn launch_id(&mut self, _: Resource<ticks::Tick>) -> wasmtime::Result<String> {
        Ok("bench/sandbox@2026-09-17T02:00:00Z".into())
    }

    fn scheduled(&mut self, _: Resource<ticks::Tick>) -> wasmtime::Result<ticks::Instant> {
        Ok(ticks::Instant { seconds: 1_789_610_400, nanoseconds: 0 })
    }

    fn scheduled_local(&mut self, _: Resource<ticks::Tick>) -> wasmtime::Result<String> {
        Ok("2026-09-17T04:00:00+02:00".into())
    }

    fn previous(&mut self, _: Resource<ticks::Tick>) -> wasmtime::Result<Option<ticks::Instant>> {
        Ok(None)
    }

    fn attempt(&mut self, _: Resource<ticks::Tick>) -> wasmtime::Result<u32> {
        Ok(1)
    }

    fn key(&mut self, _: Resource<ticks::Tick>, _: String) -> Call<Resource<ticks::Key>> {
        wasmtime::bail!("no keys here")
    }

    fn drop(&mut self, _: Resource<ticks::Tick>) -> wasmtime::Result<()> {
        Ok(())
    }
}

impl ticks::HostKey for State {
    fn child(&mut self, _: Resource<ticks::Key>, _: String) -> Call<Resource<ticks::Key>> {
        wasmtime::bail!("no keys here")
    }

    fn text(&mut self, _: Resource<ticks::Key>) -> wasmtime::Result<String> {
        wasmtime::bail!("no keys here")
    }

    fn drop(&mut self, _: Resource<ticks::Key>) -> wasmtime::Result<()> {
        Ok(())
    }
}

impl http::Host for State {
    async fn read(&mut self, _: http::Request) -> Call<http::Response> {
        wasmtime::bail!("no network here")
    }

    async fn send(&mut self, _: Resource<ticks::Key>, _: http::Request) -> Call<http::Response> {
        wasmtime::bail!("no network here")
    }
}

impl kv::Host for State {
    async fn get(&mut self, _: String) -> Call<Option<Vec<u8>>> {
        Ok(Ok(None))
    }

    async fn list_names(&mut self, _: String, _: Option<String>) -> Call<kv::Page> {
        Ok(Ok(kv::Page { names: Vec::new(), cursor: None }))
    }

    async fn set(&mut self, _: Resource<ticks::Key>, _: String, _: Vec<u8>) -> Call<()> {
        wasmtime::bail!("no store here")
    }

    async fn delete(&mut self, _: Resource<ticks::Key>, _: String) -> Call<()> {
        wasmtime::bail!("no store here")
    }

    async fn increment(&mut self, _: Resource<ticks::Key>, _: String, _: i64) -> Call<i64> {
        wasmtime::bail!("no store here")
    }
}

impl config::Host for State {
    fn get(&mut self, name: String) -> wasmtime::Result<Option<String>> {
        Ok((name == "do").then(|| "noop".into()))
    }

    fn get_all(&mut self) -> wasmtime::Result<Vec<(String, String)>> {
        Ok(vec![("do".into(), "noop".into())])
    }
}

impl logging::Host for State {
    fn log(&mut self, _: logging::Level, _: String, _: Vec<(String, String)>) -> wasmtime::Result<()> {
        Ok(())
    }
}
