//! `http`: requests to the destinations that the job's manifest allows. What may change something carries a key
//! and goes through the journal.

use std::{str::FromStr, time::Duration};

use http::Method;
use wasmtime::component::Resource;

use super::{
    CallError,
    send::{Answered, Asked, Checked, is_safe},
    ticks::Key,
};
use crate::{
    bindings::tickhost::job::{errors::Code, http as wit},
    egress::{Answer, Patience},
    run::RunState,
};

impl RunState {
    fn check(&self, r: wit::Request) -> Result<Checked, CallError> {
        let total = r.timeout_ms.map_or(Duration::MAX, |ms| Duration::from_millis(u64::from(ms)));
        let patience = Patience { total, ..Patience::default() };
        let body = r.body.unwrap_or_default();
        self.sender.check(Asked { method: &r.method, url: &r.url, headers: &r.headers, body, patience })
    }
}

fn response(answer: Answer, replayed: bool) -> wit::Response {
    let Answer { status, headers, body } = answer;
    wit::Response { status, headers, body, replayed }
}

impl wit::Host for RunState {
    async fn read(&mut self, r: wit::Request) -> Result<wit::Response, CallError> {
        if Method::from_str(&r.method).is_ok_and(|method| !is_safe(&method)) {
            let message = format!("`read` sends GET, HEAD and OPTIONS; `{}` needs `send` and a key", r.method);
            return Err(CallError::new(Code::Invalid, message));
        }
        let checked = self.check(r)?;
        self.sender.read(checked).await.map(|answer| response(answer, false))
    }

    async fn send(&mut self, key: Resource<Key>, r: wit::Request) -> Result<wit::Response, CallError> {
        let key = self.table.get(&key)?.uuid;
        let checked = self.check(r)?;
        let Answered { answer, replayed, .. } = self.sender.effect(key, checked).await?;
        Ok(response(answer, replayed))
    }
}
