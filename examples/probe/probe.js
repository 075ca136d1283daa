// A health probe: it alerts once when its target goes down, and says once when it is back.
import { read, send } from 'tickhost:job/http@0.1.0';
import { get as getConfig } from 'tickhost:job/config@0.1.0';
import { get as getState, set as setState } from 'tickhost:job/kv@0.1.0';
import { log } from 'tickhost:job/logging@0.1.0';

// Bodies and values are bytes: a string would be taken for an empty one.
const bytes = (text) => new TextEncoder().encode(text);
const text = (value) => new TextDecoder().decode(value);

function required(name) {
  const value = getConfig(name);
  if (value === undefined) throw new Error(`the config lacks \`${name}\``);
  return value;
}

// Up or down, and why. A target that does not answer is down; that is what the probe is for.
function look(target) {
  try {
    const { status } = read({ method: 'GET', url: target, headers: [], timeoutMs: 5000 });
    return { state: status >= 200 && status < 300 ? 'up' : 'down', why: `status ${status}` };
  } catch (error) {
    if (error.payload === undefined) throw error;
    return { state: 'down', why: error.payload.message };
  }
}

export const entry = {
  run(tick) {
    const target = required('target');
    const name = `probe/${tick.job()}/state`;
    const { state, why } = look(target);
    const stored = getState(name);
    const before = stored === undefined ? 'up' : text(stored);
    if (state !== before) {
      // The reason is for the log: it may differ between two attempts, and one key stands for one body.
      log('warn', `the target is ${state}`, [['target', target], ['why', why]]);
      const answer = send(tick.key('alert').child(state), {
        method: 'POST',
        url: required('webhook'),
        headers: [['content-type', 'application/json']],
        body: bytes(JSON.stringify({ target, state, since: tick.scheduledLocal() })),
      });
      if (answer.status >= 300) {
        throw Object.assign(new Error(`the webhook answered ${answer.status}`), { retry: true });
      }
      // Only once the alert is out: otherwise a run cut off in between would keep it for itself.
      setState(tick.key('state').child(state), name, bytes(state));
    }
    return `${state}: ${why}`;
  },
};
