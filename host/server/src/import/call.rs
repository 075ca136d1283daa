//! Commands that are a plain HTTP request: `curl` and `wget`, without a shell around them.

use super::Config;

/// A request as the ready-made job `http-call` makes it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Call {
    method: String,
    url: String,
    headers: Vec<(String, String)>,
    body: Option<String>,
    /// Seconds that it may take.
    pub(super) wall_s: Option<u64>,
    /// Options that do not carry over, with the reason.
    pub(super) remarks: Vec<String>,
}

impl Call {
    /// `scheme://host[:port]`, as `allow` wants it.
    pub(super) fn origin(&self) -> String {
        let rest = self.url.find("://").map_or(0, |at| at + 3);
        let end = self.url[rest..].find(['/', '?', '#']).map_or(self.url.len(), |at| rest + at);
        self.url[..end].to_owned()
    }

    /// The kind of body that an option implies, unless a header says another one.
    fn imply_type(&mut self, implied: Option<&str>) {
        let is_said = self.headers.iter().any(|(name, _)| name == "content-type");
        let implied = implied.filter(|_| !is_said).map(|kind| ("content-type".to_owned(), kind.to_owned()));
        self.headers.extend(implied);
    }

    pub(super) fn config(&self) -> Config {
        let mut config = Config::from([("method".into(), self.method.clone()), ("url".into(), self.url.clone())]);
        // Braces are places for values in `http-call`.
        let body = self.body.as_ref().map(|body| body.replace('{', "{{").replace('}', "}}"));
        config.extend(body.map(|body| ("body".into(), body)));
        let header = |(name, value): &(String, String)| (format!("headers.{}", name.to_lowercase()), value.clone());
        config.extend(self.headers.iter().map(header));
        config
    }
}

const FORM: &str = "application/x-www-form-urlencoded";

/// The request that a command line makes; `None` where it is more than that.
pub(super) fn read(command: &str) -> Option<Call> {
    from_words(&shell_words::split(&without_redirects(command)?).ok()?)
}

/// As [`read`], of words that a program is started with.
pub(super) fn from_words(words: &[String]) -> Option<Call> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (program, rest) = words.split_first()?;
    // What is filled in when it runs is not known here.
    if rest.iter().any(|word| word.contains(['$', '`'])) {
        return None;
    }
    let mut call = match program.rsplit('/').next()? {
        "curl" => curl(rest)?,
        "wget" => wget(rest)?,
        _ => return None,
    };
    if !call.url.contains("://") {
        call.url = format!("http://{}", call.url);
    }
    let is_http = call.url.starts_with("http://") || call.url.starts_with("https://");
    let mut names: Vec<&String> = call.headers.iter().map(|(name, _)| name).collect();
    names.sort();
    let is_unique = names.windows(2).all(|pair| pair[0] != pair[1]);
    // A password in the address is not for a manifest.
    (is_http && is_unique && !call.origin().contains('@')).then_some(call)
}

/// The command without output that is thrown away, which is no part of the request. `None` for any other sign of a
/// shell outside of quotes.
fn without_redirects(command: &str) -> Option<String> {
    const THROWN_AWAY: [&str; 8] = [
        ">/dev/null",
        "> /dev/null",
        "1>/dev/null",
        "2>/dev/null",
        "2> /dev/null",
        "&>/dev/null",
        "2>&1",
        "1> /dev/null",
    ];
    let (mut kept, mut rest) = (String::new(), command);
    let mut quote = None;
    while let Some(c) = rest.chars().next() {
        let at_a_word = kept.is_empty() || kept.ends_with(char::is_whitespace);
        if quote.is_none()
            && let Some(redirect) = THROWN_AWAY.iter().find(|redirect| at_a_word && rest.starts_with(**redirect))
        {
            rest = &rest[redirect.len()..];
            kept.push(' ');
            continue;
        }
        match (quote, c) {
            (None, '|' | '&' | ';' | '<' | '>' | '(' | ')') => return None,
            (None, '\'' | '"') => quote = Some(c),
            (Some(open), c) if open == c => quote = None,
            _ => {}
        }
        // What is escaped means itself.
        let mut taken = c.len_utf8();
        if c == '\\' && quote != Some('\'') {
            taken += rest[1..].chars().next().map_or(0, char::len_utf8);
        }
        kept.push_str(&rest[..taken]);
        rest = &rest[taken..];
    }
    Some(kept)
}

fn curl(words: &[&str]) -> Option<Call> {
    let mut call = Call { method: "GET".into(), ..Call::default() };
    let (mut method, mut implied) = (None, None);
    let mut rest = words.iter().copied();
    while let Some(word) = rest.next() {
        let (option, attached) = option(word);
        let mut value = || attached.or_else(|| rest.next());
        match option {
            "-X" | "--request" => method = Some(value()?.to_ascii_uppercase()),
            "-d" | "--data" | "--data-raw" | "--data-ascii" | "--data-binary" | "--json" => {
                let data = value()?;
                // A file's content is not here.
                if data.starts_with('@') {
                    return None;
                }
                implied = Some(if option == "--json" { "application/json" } else { FORM });
                call.body = Some(call.body.take().map_or(data.to_owned(), |body| format!("{body}&{data}")));
            }
            "-H" | "--header" => header(&mut call, value()?)?,
            "-A" | "--user-agent" => call.headers.push(("user-agent".into(), value()?.to_owned())),
            "-m" | "--max-time" => call.wall_s = Some(value()?.parse().ok()?).filter(|seconds| *seconds > 0),
            "-o" | "--output" => {
                value().filter(|target| *target == "/dev/null" || *target == "-")?;
            }
            "--retry" | "--retry-delay" | "--connect-timeout" | "--retry-max-time" => {
                let value = value()?;
                call.remarks.push(format!("`{option} {value}`: say it with [retry]"));
            }
            "-L" | "--location" => {
                call.remarks.push(format!("`{option}`: redirects are not followed; write the final address"));
            }
            "-I" | "--head" => method = Some("HEAD".into()),
            "--url" => call.url = value()?.to_owned(),
            "-s"
            | "--silent"
            | "-S"
            | "--show-error"
            | "-f"
            | "--fail"
            | "--fail-with-body"
            | "--compressed"
            | "--no-progress-meter" => {}
            word if is_bundle(word, "sSf") => {}
            word if is_bundle(word, "sSfL") => {
                call.remarks.push("`-L`: redirects are not followed; write the final address".into());
            }
            word if word.starts_with('-') => return None,
            url if call.url.is_empty() => call.url = url.to_owned(),
            _ => return None,
        }
    }
    let default = if call.body.is_some() { "POST" } else { "GET" };
    call.method = method.unwrap_or_else(|| default.to_owned());
    call.imply_type(implied);
    (!call.url.is_empty()).then_some(call)
}

fn wget(words: &[&str]) -> Option<Call> {
    let mut call = Call { method: "GET".into(), ..Call::default() };
    let (mut implied, mut is_kept) = (None, true);
    let mut rest = words.iter().copied();
    while let Some(word) = rest.next() {
        let (option, attached) = option(word);
        let mut value = || attached.or_else(|| rest.next());
        match option {
            "--method" => call.method = value()?.to_ascii_uppercase(),
            "--post-data" => {
                call.body = Some(value()?.to_owned());
                call.method = "POST".into();
                implied = Some(FORM);
            }
            "--body-data" => call.body = Some(value()?.to_owned()),
            "--header" => header(&mut call, value()?)?,
            "--spider" => (call.method, is_kept) = ("HEAD".into(), false),
            "-O" | "--output-document" | "-qO" => {
                value().filter(|target| *target == "/dev/null" || *target == "-")?;
                is_kept = false;
            }
            "-O/dev/null" | "-O-" | "-qO-" | "-qO/dev/null" | "--delete-after" => is_kept = false,
            "-T" | "--timeout" => call.wall_s = Some(value()?.parse().ok()?).filter(|seconds| *seconds > 0),
            "-t" | "--tries" => {
                let value = value()?;
                call.remarks.push(format!("`{option} {value}`: say it with [retry]"));
            }
            "-q" | "--quiet" | "-nv" | "--no-verbose" => {}
            word if word.starts_with('-') => return None,
            url if call.url.is_empty() => call.url = url.to_owned(),
            _ => return None,
        }
    }
    if is_kept {
        call.remarks.push("`wget` keeps what it fetches as a file; here it is not kept".into());
    }
    call.imply_type(implied);
    (!call.url.is_empty()).then_some(call)
}

/// A word, and a value that is attached to it as in `--name=value`.
fn option(word: &str) -> (&str, Option<&str>) {
    match word.split_once('=') {
        Some((option, value)) if option.starts_with("--") => (option, Some(value)),
        _ => (word, None),
    }
}

fn header(call: &mut Call, text: &str) -> Option<()> {
    let (name, value) = text.split_once(':')?;
    call.headers.push((name.trim().to_lowercase(), value.trim().to_owned()));
    Some(())
}

fn is_bundle(word: &str, letters: &str) -> bool {
    word.strip_prefix('-').is_some_and(|rest| !rest.is_empty() && rest.chars().all(|c| letters.contains(c)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn plain_calls_are_read_and_everything_else_is_left_alone() {
        let call = |text: &str| read(text).map(|call| (call.origin(), call.config()));
        let (origin, config) = call("curl -fsS -X POST -H 'Content-Type: application/json' -d '{\"a\":1}' https://api.example.com:8443/run?x=1 >/dev/null 2>&1").unwrap();
        assert_eq!(origin, "https://api.example.com:8443");
        assert_eq!(config["method"], "POST");
        assert_eq!(config["body"], "{{\"a\":1}}");
        assert_eq!(config["headers.content-type"], "application/json");
        assert_eq!(config["url"], "https://api.example.com:8443/run?x=1");
        let (_, config) = call("/usr/bin/wget -q -O /dev/null http://example.com/cron.php").unwrap();
        assert_eq!((config["method"].as_str(), config["url"].as_str()), ("GET", "http://example.com/cron.php"));
        let (_, config) = call("curl -s 'https://example.com/a?x=1&y=(2)' 2>&1 > /dev/null").unwrap();
        assert_eq!(config["url"], "https://example.com/a?x=1&y=(2)");
        let (_, config) = call("curl example.com/ping").unwrap();
        assert_eq!(config["url"], "http://example.com/ping");
        for other in [
            "curl https://example.com/a | sh",
            "curl -d @file https://example.com",
            "curl https://example.com && echo done",
            "curl -u me:secret https://example.com",
            "curl https://$HOST/x",
            "test -x /usr/bin/curl",
            "wget https://example.com/file.tar.gz -O /srv/file.tar.gz",
            "curl 'unbalanced",
            "curl https://example.com/a|sh",
            "curl https://example.com/x>/srv/x",
            "curl https://example.com/x;/bin/true",
            "curl -H \"Authorization: Bearer $TOKEN\" https://example.com",
            "curl -d \"day=$(date +%F)\" https://example.com",
            "curl https://me:secret@example.com/",
            "curl -H 'Cookie: a=1' -H 'Cookie: b=2' https://example.com",
        ] {
            assert_eq!(call(other), None, "{other}");
        }
    }
}
