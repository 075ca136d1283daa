//! The effect journal and the key-value store.

use uuid::Uuid;

use super::{
    State,
    apply::{Answer, Context},
};
use crate::{
    command::{KvChange, Refusal, Reply},
    effect::{ByteBuf, Effect, EffectAnswer, EffectId, EffectIntent, EffectResult, admit},
    ids::{Digest, Grant, RunId},
    rows::{KvValue, Launch, Origin},
};

impl State {
    pub(super) fn record(&mut self, run: &RunId, results: &[(Uuid, EffectResult)]) {
        for (key, result) in results {
            let id = EffectId { job: run.launch.job.clone(), tick: run.launch.tick, key: *key };
            if let Some(effect) = self.effects.get(&id) {
                let effect = Effect { result: Some(result.clone()), ..effect.clone() };
                self.set_effect(id, Some(effect));
            }
        }
    }

    #[allow(clippy::too_many_arguments, reason = "the command's fields, in its order")]
    pub(super) fn intend_effect(
        &mut self,
        cx: &Context,
        run: &RunId,
        grant: Grant,
        call: u32,
        key: Uuid,
        what: &str,
        fingerprint: Digest,
        results: &[(Uuid, EffectResult)],
    ) -> Answer {
        let resend = self.is_ordered_resend(self.current(run, grant)?);
        self.record(run, results);
        let on_unknown = self.policy(&run.launch).on_unknown;
        let id = EffectId { job: run.launch.job.clone(), tick: run.launch.tick, key };
        let earlier = self.effects.get(&id);
        // Proposed again after an answer that was lost on its way: the run has sent nothing yet.
        let is_same = |intent: &EffectIntent| {
            (intent.rerun, intent.attempt, intent.call) == (run.launch.rerun, run.attempt, call)
        };
        if earlier.is_some_and(|effect| effect.intended.last().is_some_and(is_same)) {
            return Ok(Reply::Effect(EffectAnswer::Go));
        }
        let answer = admit(earlier, &fingerprint, on_unknown, resend);
        if answer == EffectAnswer::Go {
            if let Some(why) = self.journal_is_full(&run.launch.job.namespace) {
                return Ok(Reply::Effect(EffectAnswer::OverQuota(why)));
            }
            self.note_intent(cx, run, call, id, what, fingerprint, None);
        }
        Ok(Reply::Effect(answer))
    }

    /// A re-run under the same keys is the operator's order to finish what is in doubt.
    pub(super) fn is_ordered_resend(&self, launch: &Launch) -> bool {
        matches!(launch.origin, Origin::Manual { same_key: true, .. })
    }

    #[allow(clippy::too_many_arguments, reason = "what a row of the journal is made of")]
    pub(super) fn note_intent(
        &mut self,
        cx: &Context,
        run: &RunId,
        call: u32,
        id: EffectId,
        what: &str,
        fingerprint: Digest,
        result: Option<EffectResult>,
    ) {
        let mut effect = self.effects.get(&id).cloned().unwrap_or(Effect {
            what: what.to_owned(),
            fingerprint,
            intended: Vec::new(),
            result: None,
        });
        effect.intended.push(EffectIntent { rerun: run.launch.rerun, attempt: run.attempt, call, at: cx.at });
        effect.result = result;
        self.set_effect(id, Some(effect));
    }

    #[allow(clippy::too_many_arguments, reason = "the command's fields, in its order")]
    pub(super) fn write_kv(
        &mut self,
        cx: &Context,
        run: &RunId,
        grant: Grant,
        key: Uuid,
        name: &str,
        change: &KvChange,
        results: &[(Uuid, EffectResult)],
    ) -> Answer {
        self.current(run, grant)?;
        self.record(run, results);
        let (verb, payload) = match change {
            KvChange::Set(bytes) => ("set", bytes.0.clone()),
            KvChange::Delete => ("delete", Vec::new()),
            KvChange::Increment(by) => ("increment", by.to_be_bytes().to_vec()),
        };
        let what = format!("kv {verb} {name}");
        let fingerprint = Digest::of(&[what.as_bytes(), &[0], &payload].concat());
        let id = EffectId { job: run.launch.job.clone(), tick: run.launch.tick, key };
        match admit(self.effects.get(&id), &fingerprint, self.policy(&run.launch).on_unknown, true) {
            EffectAnswer::Go => {}
            other => return Ok(Reply::Effect(other)),
        }
        let row = (run.launch.job.namespace.clone(), name.to_owned());
        let (sum, bytes) = match change {
            KvChange::Set(bytes) => (None, Some(bytes.0.clone())),
            KvChange::Delete => (None, None),
            KvChange::Increment(by) => {
                let sum = add(name, self.kv.get(&row), *by)?;
                (Some(sum), Some(sum.to_string().into_bytes()))
            }
        };
        let value = bytes.map(|bytes| KvValue { bytes: ByteBuf(bytes), by: run.launch.clone(), at: cx.at });
        let is_full = value.as_ref().and_then(|value| self.kv_is_full(&row, value));
        if let Some(why) = is_full.or_else(|| self.journal_is_full(&row.0)) {
            return Ok(Reply::Effect(EffectAnswer::OverQuota(why)));
        }
        self.set_kv(row, value);
        let result = EffectResult::Kv { value: sum };
        self.note_intent(cx, run, 0, id, &what, fingerprint, Some(result.clone()));
        Ok(Reply::Effect(EffectAnswer::Replay(result)))
    }
}

fn add(name: &str, value: Option<&KvValue>, by: i64) -> Result<i64, Refusal> {
    let Some(value) = value else { return Ok(by) };
    let text = String::from_utf8_lossy(&value.bytes.0);
    let sum = text.parse::<i64>().ok().and_then(|n| n.checked_add(by));
    sum.ok_or_else(|| {
        let mut found = text.chars().take(40).collect::<String>();
        if found.len() < text.len() {
            found.push('…');
        }
        Refusal::NotANumber { name: name.to_owned(), found: format!("`{found}`") }
    })
}
