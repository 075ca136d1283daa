//! Crontabs: a user's, or the system's with a user in the sixth field.

use super::{Draft, Imported, call, check, name_from};

/// How a crontab is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Crontab {
    /// The sixth field is a user, as in `/etc/crontab` and `/etc/cron.d`.
    pub(crate) has_user: bool,
    /// The zone of what stands before any `CRON_TZ`.
    pub(crate) zone: Option<String>,
}

/// Reads a crontab.
pub(crate) fn crontab(text: &str, reading: &Crontab) -> Imported {
    let mut imported = Imported::default();
    let mut state = State { zone: reading.zone.clone(), ..State::default() };
    let mut said_zone = false;
    // Some editors put a mark in front that is no text.
    for (index, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
        let place = format!("line {}", index + 1);
        let line = line.trim_end_matches('\r').trim();
        if line.is_empty() {
            state.comments.clear();
        } else if let Some(comment) = line.strip_prefix('#') {
            state.comments.push(comment.trim().to_owned());
        } else if let Some((name, value)) = variable(line) {
            state.set(&mut imported, reading, &place, name, value);
        } else {
            job(line, &place, reading, &mut state, &mut imported);
            said_zone |= state.zone.is_some();
        }
    }
    if !imported.jobs.is_empty() && !said_zone {
        imported.remark(
            "the whole file",
            "a crontab runs in its machine's zone; this one runs in UTC unless `--zone` says otherwise",
        );
    }
    imported
}

#[derive(Default)]
struct State {
    zone: Option<String>,
    comments: Vec<String>,
    /// cronie's `RANDOM_DELAY`, in minutes.
    delay_min: Option<u32>,
}

impl State {
    fn set(&mut self, imported: &mut Imported, reading: &Crontab, place: &str, name: &str, value: &str) {
        match name {
            "CRON_TZ" => match check("@daily", value) {
                Ok(()) => self.zone = Some(value.to_owned()),
                Err(error) => {
                    self.zone.clone_from(&reading.zone);
                    let zone = reading.zone.as_deref().unwrap_or("UTC");
                    imported.remark(place, format!("`CRON_TZ={value}`: {}; what follows is in {zone}", error.message));
                }
            },
            "RANDOM_DELAY" => match value.parse::<u32>() {
                Ok(minutes) if minutes <= 24 * 60 => self.delay_min = Some(minutes).filter(|minutes| *minutes > 0),
                _ => imported.remark(
                    place,
                    format!("`RANDOM_DELAY={value}` is no number of minutes up to a day; say it with `window`"),
                ),
            },
            "MAILTO" if value.is_empty() => {}
            "MAILTO" => imported.remark(
                place,
                format!("`MAILTO={value}`: nothing is mailed; what a run wrote is shown by `tickhost logs`"),
            ),
            _ => imported.remark(
                place,
                format!("`{name}={value}`: a component has no environment; give it what it needs in [config]"),
            ),
        }
    }
}

/// `NAME=value`, with optional quotes and blanks.
fn variable(line: &str) -> Option<(&str, &str)> {
    let (name, value) = line.split_once('=')?;
    let unquoted = |text: &'_ str| -> Option<usize> {
        let is_quoted = text.len() >= 2
            && (text.starts_with('"') && text.ends_with('"') || text.starts_with('\'') && text.ends_with('\''));
        is_quoted.then_some(text.len())
    };
    let strip = |text: &'_ str| match unquoted(text) {
        Some(len) => (1, len - 1),
        None => (0, text.len()),
    };
    let (name, value) = (name.trim(), value.trim());
    let (from, to) = strip(name);
    let name = &name[from..to];
    let (from, to) = strip(value);
    let first = name.bytes().next()?;
    let is_name =
        (first.is_ascii_alphabetic() || first == b'_') && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    is_name.then(|| (name, &value[from..to]))
}

fn job(line: &str, place: &str, reading: &Crontab, state: &mut State, imported: &mut Imported) {
    let comments = std::mem::take(&mut state.comments);
    let quiet = line.strip_prefix('-');
    let line = quiet.unwrap_or(line);
    let fields = if line.starts_with('@') { 1 } else { 5 };
    let (schedule, rest) = split_words(line, fields);
    if schedule.eq_ignore_ascii_case("@reboot") {
        imported.remark(
            place,
            format!("`{line}`: `@reboot` has no meaning here, hosts come and go; let a service manager start it, or trigger the job with `tickhost trigger`"),
        );
        return;
    }
    let (user, command) = match reading.has_user {
        true => {
            let (user, command) = split_words(rest, 1);
            (Some(user), command)
        }
        false => (None, rest),
    };
    if command.is_empty() || command.starts_with('#') {
        let expected = if reading.has_user { "five fields, a user and a command" } else { "five fields and a command" };
        let hint = if reading.has_user { "--user" } else { "--system" };
        imported.remark(
            place,
            format!("`{line}` is no job: expected {expected}; `{hint}` reads the other kind of crontab"),
        );
        return;
    }
    let written = if schedule.contains('~') { random_ranges(&schedule) } else { schedule.clone() };
    let zone = state.zone.clone();
    if let Err(error) = check(&written, zone.as_deref().unwrap_or("UTC")) {
        let field = error.field.map_or(String::new(), |field| format!("{field} field: "));
        imported.remark(place, format!("`{line}`: {field}{}; {}", error.message, error.help));
        return;
    }
    if written != schedule {
        imported.remark(
            place,
            format!("`{schedule}`: cron draws `~` anew at each start, `?` picks once, by the job's name"),
        );
    }
    if quiet.is_some() {
        imported.remark(
            place,
            "the leading `-`, which keeps cron from logging the job, has no counterpart: every launch is recorded",
        );
    }
    if let Some(user) = user.filter(|user| user != "root") {
        imported.remark(
            place,
            format!("it ran as the user `{user}`; a component has no user, only what its manifest allows"),
        );
    }
    if !reading.has_user && command.split_whitespace().next() == Some("root") {
        imported.remark(
            place,
            "`root` stands where a command is expected; if this is a system's crontab, read it with `--system`",
        );
    }
    let (command, input) = unescape(command);
    if let Some(input) = input {
        imported.remark(
            place,
            format!(
                "what stood behind `%` was the command's standard input, which a component does not have: {input:?}"
            ),
        );
    }
    let call = call::read(&command);
    let mut draft =
        Draft { name: imported.unique(&name_of(&command)), comments, schedule: written, zone, ..Draft::default() };
    match &call {
        Some(call) => {
            for remark in &call.remarks {
                imported.remark(place, remark.clone());
            }
            if let Some(seconds) = call.wall_s {
                imported.limit_wall(&mut draft, place, seconds);
            }
        }
        None => imported.remark(
            place,
            format!(
                "`{command}` needs a component that does the same; the manifest names one that is yet to be written"
            ),
        ),
    }
    if let Some(minutes) = state.delay_min {
        draft.fields.push(("window", format!("\"{minutes}m\"")));
    }
    draft.command = command;
    draft.call = call;
    imported.jobs.push(draft);
}

/// The first `count` words as one text with single blanks, and the rest of the line.
fn split_words(line: &str, count: usize) -> (String, &str) {
    let mut rest = line.trim_start();
    let mut words = Vec::new();
    while words.len() < count && !rest.is_empty() {
        let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
        words.push(&rest[..end]);
        rest = rest[end..].trim_start();
    }
    (words.join(" "), rest)
}

/// cronie's `a~b` is a value drawn from a range, either end of which may be left out: what `?(a-b)` is here.
fn random_ranges(schedule: &str) -> String {
    const BOUNDS: [(&str, &str); 5] = [("0", "59"), ("0", "23"), ("1", "31"), ("1", "12"), ("0", "6")];
    let element = |text: &str, (first, last): (&str, &str)| {
        let (range, step) =
            text.split_once('/').map_or((text, String::new()), |(range, step)| (range, format!("/{step}")));
        match range.split_once('~') {
            Some(("", "")) => format!("?{step}"),
            Some((lo, hi)) => {
                let lo = if lo.is_empty() { first } else { lo };
                format!("?({lo}-{}){step}", if hi.is_empty() { last } else { hi })
            }
            None => text.to_owned(),
        }
    };
    let field = |(text, bounds): (&str, (&str, &str))| {
        text.split(',').map(|text| element(text, bounds)).collect::<Vec<_>>().join(",")
    };
    schedule.split(' ').zip(BOUNDS).map(field).collect::<Vec<_>>().join(" ")
}

/// An unescaped `%` ends the command and begins its input; further ones are ends of lines.
fn unescape(command: &str) -> (String, Option<String>) {
    let (mut text, mut input) = (String::new(), None::<String>);
    let mut rest = command.chars().peekable();
    while let Some(c) = rest.next() {
        let escaped = c == '\\' && rest.peek() == Some(&'%');
        let out = if escaped { rest.next().unwrap_or('%') } else { c };
        match (&mut input, out == '%' && !escaped) {
            (None, true) => input = Some(String::new()),
            (Some(input), true) => input.push('\n'),
            (Some(input), false) => input.push(out),
            (None, false) => text.push(out),
        }
    }
    (text.trim_end().to_owned(), input)
}

/// A name for a command: the last program of it, behind tests and changes of folder.
fn name_of(command: &str) -> String {
    const AROUND: [&str; 20] = [
        "cd", "test", "[", "[[", "command", "export", "sleep", "umask", "nice", "ionice", "if", "then", "else", "elif",
        "fi", "exec", "true", "false", "exit", "perl",
    ];
    let plain = without_quotes(command);
    let mut name = None;
    for part in plain.split(['&', ';', '{', '}']).flat_map(|part| part.split("||")) {
        // Of a pipe the beginning.
        let part = part.split('|').next().unwrap_or_default();
        let programs = part.split_whitespace().filter(|word| {
            let starts = word.bytes().next().is_some_and(|b| b.is_ascii_alphabetic() || b"/.~".contains(&b));
            starts && !word.contains('=')
        });
        let base = |word: &str| word.rsplit('/').next().unwrap_or(word).to_owned();
        let mut skipped = false;
        for word in programs {
            let word = base(word);
            match word.as_str() {
                // What they stand before runs; what the others are about does not.
                "if" | "then" | "else" | "elif" | "nice" | "ionice" | "exec" => {}
                around if AROUND.contains(&around) => {
                    skipped = true;
                    break;
                }
                _ => {
                    name = Some(word);
                    break;
                }
            }
        }
        if skipped {
            continue;
        }
        let host = part.split_whitespace().find_map(|word| word.split_once("://")).map(|(_, rest)| rest);
        if let Some(host) = host.filter(|_| name.as_deref().is_some_and(|name| ["curl", "wget"].contains(&name))) {
            name = host.split(['/', '?', ':']).next().map(|host| host.rsplit('@').next().unwrap_or(host).to_owned());
        }
    }
    let first = plain.split_whitespace().next().unwrap_or_default();
    name_from(&name.unwrap_or_else(|| first.rsplit('/').next().unwrap_or(first).to_owned()))
}

/// Without quotation marks, texts that have blanks in them, and commands inside of commands.
fn without_quotes(command: &str) -> String {
    let mut out = String::new();
    let mut rest = command;
    while let Some(at) = rest.find(['\'', '"', '`', '$']) {
        out.push_str(&rest[..at]);
        let (open, behind) = rest[at..].split_at(1);
        let close = match open {
            "$" if behind.starts_with('(') => ")",
            "$" => {
                rest = behind;
                continue;
            }
            mark => mark,
        };
        let Some(end) = behind.find(close) else {
            rest = behind;
            continue;
        };
        let inside = &behind[..end];
        if open != "`" && open != "$" && !inside.contains(char::is_whitespace) {
            out.push_str(inside);
        }
        rest = &behind[end + 1..];
    }
    out + rest
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn read(text: &str, has_user: bool) -> Imported {
        crontab(text, &Crontab { has_user, zone: None })
    }

    fn remarks(imported: &Imported) -> Vec<String> {
        imported.remarks.iter().map(|remark| format!("{}: {}", remark.place, remark.text)).collect()
    }

    #[test]
    fn a_users_crontab_is_read_whole() {
        let text = "# Backups\r\nMAILTO=\"ops@example.com\"\r\nCRON_TZ=Europe/Paris\r\n\
                    30 2 * * 1-5 /usr/local/bin/backup --all\r\n\r\n@reboot /usr/bin/agent\r\n\
                    */10 * * * * curl -fsS https://example.com/ping\r\n0 0 32 * * nothing\r\n\
                    5 4 * * * mail -s \"100\\%\" root%Hello%there";
        let imported = read(text, false);
        let jobs: Vec<(&str, &str, Option<&str>)> =
            imported.jobs.iter().map(|j| (j.name.as_str(), j.schedule.as_str(), j.zone.as_deref())).collect();
        let paris = Some("Europe/Paris");
        assert_eq!(
            jobs,
            [("backup", "30 2 * * 1-5", paris), ("example-com", "*/10 * * * *", paris), ("mail", "5 4 * * *", paris)]
        );
        assert_eq!(imported.jobs[2].command, "mail -s \"100%\" root");
        let remarks = remarks(&imported);
        for needle in [
            "line 2: `MAILTO=ops@example.com`",
            "line 4: `/usr/local/bin/backup --all` needs a component",
            "line 6: `@reboot /usr/bin/agent`: `@reboot` has no meaning here",
            "line 8: `0 0 32 * * nothing`: day-of-month field: `32` is out of range",
            "line 9: what stood behind `%` was the command's standard input, which a component does not have: \"Hello\\nthere\"",
        ] {
            assert!(remarks.iter().any(|remark| remark.starts_with(needle)), "{needle}: {remarks:#?}");
        }
        assert_eq!(remarks.len(), 6, "{remarks:#?}");
    }

    #[test]
    fn the_systems_crontab_has_a_user() {
        let text = "SHELL=/bin/sh\nRANDOM_DELAY=45\n17 *\t* * *\troot\tcd / && run-parts --report /etc/cron.hourly\n\
                    @daily www-data wget -q -O - http://example.com/cron.php > /dev/null\n~ 0~6 * * 7 root /bin/true\n";
        let imported = read(text, true);
        let jobs: Vec<(&str, &str)> = imported.jobs.iter().map(|j| (j.name.as_str(), j.schedule.as_str())).collect();
        assert_eq!(jobs, [("run-parts", "17 * * * *"), ("example-com", "@daily"), ("true", "? ?(0-6) * * 7")]);
        assert!(imported.jobs.iter().all(|job| job.fields.contains(&("window", "\"45m\"".into()))));
        for (written, expected) in
            [("5~ ~10 * * *", "?(5-59) ?(0-10) * * *"), ("0~59/20 ~ * * *", "?(0-59)/20 ? * * *")]
        {
            assert_eq!(random_ranges(written), expected);
        }
        for (command, expected) in [
            (
                "[ -x /usr/lib/php/sessionclean ] && if [ ! -d /run/systemd/system ]; then /usr/lib/php/sessionclean; fi",
                "sessionclean",
            ),
            (
                "if [ -x /usr/share/mdadm/checkarray ] && [ $(date +%d) -le 7 ]; then /usr/share/mdadm/checkarray --cron; fi",
                "checkarray",
            ),
            (
                "test -x /usr/bin/certbot -a \\! -d /run/systemd/system && perl -e 'sleep int(rand(43200))' && certbot -q renew",
                "certbot",
            ),
            ("curl -H 'X-Q: {a}' 'https://example.com/'", "example-com"),
            ("cd /srv && ./run.sh | logger -t run", "run-sh"),
            ("nice -n10 /usr/sbin/logcheck", "logcheck"),
        ] {
            assert_eq!(name_of(command), expected, "{command}");
        }
        let remarks = remarks(&imported);
        assert!(remarks.iter().any(|remark| remark.contains("`www-data`")), "{remarks:#?}");
        assert!(remarks.iter().any(|remark| remark.contains("machine's zone")), "{remarks:#?}");
    }
}
