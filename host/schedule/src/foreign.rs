//! Texts of other schedulers that people paste: each is recognised and answered by its name.

use crate::{Field, ParseError, field::Piece};

/// The error for a text that is some other scheduler's.
pub(crate) fn recognise(text: &str, pieces: &[Piece<'_>]) -> Option<ParseError> {
    let whole = text.trim();
    let start = text.len() - text.trim_start().len();
    let all = start..start + whole.len();
    let refuse = |message: String, help: String| Some(ParseError::new(None, all.clone(), message, help));

    if let Some(inner) = quoted(whole) {
        return refuse("the expression stands in quotation marks".into(), format!("write `{inner}`"));
    }
    if let Some(value) = whole.strip_prefix("schedule:") {
        let value = value.trim();
        return refuse(
            "this is a line of a Kubernetes CronJob".into(),
            format!(
                "write the expression alone, `{}`, or take the whole file with `tickhost import cronjob`",
                quoted(value).unwrap_or(value)
            ),
        );
    }
    let lower = whole.to_ascii_lowercase();
    for wrapper in ["cron(", "rate("] {
        if let Some(inner) = lower.strip_prefix(wrapper).and_then(|rest| rest.strip_suffix(')')) {
            let help = if wrapper == "rate(" {
                format!("write `@every`, e.g. `@every {}`", rate(inner).unwrap_or_else(|| "5m".into()))
            } else {
                "write minute, hour, day of month, month, day of week with `*` for `?`, without the year, and names \
                 for weekdays (EventBridge counts Sunday as 1)"
                    .into()
            };
            return refuse(format!("`{whole}` is an expression of Amazon EventBridge"), help);
        }
    }
    if let Some(help) = on_calendar(whole) {
        return refuse(format!("`{whole}` is an `OnCalendar` value of systemd"), help);
    }
    // `0 2 * * * root /usr/bin/run`: what stands between the fields and the command is a crontab's as well.
    let is_word =
        |piece: &Piece<'_>| !looks_like_a_field(piece.text) && piece.text.contains(|c: char| c.is_ascii_lowercase());
    let is_line =
        pieces.len() > 7 || pieces.iter().skip(5).any(|piece| looks_like_a_command(piece.text) || is_word(piece));
    let command = pieces.iter().skip(5).find(|piece| !looks_like_a_field(piece.text));
    if let Some(command) = command.filter(|_| is_line && !whole.starts_with('@')) {
        return Some(pasted_line(text, command));
    }
    // `@daily root /usr/bin/run`: a crontab's line as well.
    if let [word, rest @ ..] = pieces
        && word.text.starts_with('@')
        && !word.text.eq_ignore_ascii_case("@every")
        && let Some(command) = rest.iter().find(|piece| looks_like_a_command(piece.text))
    {
        return Some(pasted_line(text, command));
    }
    None
}

/// What to write instead of a macro that is not known.
pub(crate) fn macro_help(name: &str) -> String {
    let instead = match name {
        "@every_minute" | "@minutely" => "`* * * * *`",
        "@every_second" | "@secondly" => "`* * * * * *`",
        "@quarterly" => "`0 0 1 1,4,7,10 *`",
        "@semiannually" => "`0 0 1 1,7 *`",
        "@fortnightly" | "@biweekly" => "`@every 336h`",
        _ => "one of @yearly, @annually, @monthly, @weekly, @daily, @midnight, @hourly, @every DURATION",
    };
    format!("write {instead}")
}

fn quoted(text: &str) -> Option<&str> {
    ['"', '\'', '`'].into_iter().find_map(|mark| text.strip_prefix(mark)?.strip_suffix(mark)).filter(|t| !t.is_empty())
}

/// `5 minutes` as `5m`.
fn rate(text: &str) -> Option<String> {
    let (number, unit) = text.trim().split_once(' ')?;
    let unit = ["minute", "hour", "day"].into_iter().find(|name| unit.trim().trim_end_matches('s') == *name)?;
    number.parse::<u32>().ok().map(|number| format!("{number}{}", &unit[..1]))
}

fn looks_like_a_command(word: &str) -> bool {
    word.starts_with(['/', '.', '~', '$', '"', '\'']) || word.contains(".sh")
}

/// Numbers, signs, names of days and months, and the letters of the dialect.
fn looks_like_a_field(word: &str) -> bool {
    let is_name = |part: &str| {
        let names = [Field::Month, Field::DayOfWeek].map(|field| field.names().0);
        part.is_empty() || names.into_iter().flatten().any(|name| part.eq_ignore_ascii_case(name))
    };
    let is_sign = |c: char| c.is_ascii_digit() || "*/-,?#()".contains(c);
    word.split(is_sign).all(|part| {
        let is_letters = ["L", "W", "H", "LW"].iter().any(|letter| part.eq_ignore_ascii_case(letter));
        is_letters || is_name(part) || is_name(part.trim_end_matches(['L', 'l']))
    })
}

fn pasted_line(text: &str, command: &Piece<'_>) -> ParseError {
    ParseError::new(
        None,
        command.at..command.at + text[command.at..].trim_ascii_end().len(),
        format!("`{}` is the command of a crontab line", text[command.at..].trim_ascii_end()),
        "give the five fields alone; what runs is the job's `component`; `tickhost import crontab` takes whole files",
    )
}

/// What to write instead of a systemd calendar event; `None` where it is none.
fn on_calendar(text: &str) -> Option<String> {
    let shorthand = [
        ("minutely", "* * * * *"),
        ("hourly", "0 * * * *"),
        ("daily", "0 0 * * *"),
        ("weekly", "0 0 * * MON"),
        ("monthly", "0 0 1 * *"),
        ("quarterly", "0 0 1 1,4,7,10 *"),
        ("semiannually", "0 0 1 1,7 *"),
        ("yearly", "0 0 1 1 *"),
        ("annually", "0 0 1 1 *"),
    ];
    if let Some((_, expression)) = shorthand.iter().find(|(name, _)| text.eq_ignore_ascii_case(name)) {
        return Some(format!("write `{expression}`"));
    }
    let text = text.strip_prefix("OnCalendar=").unwrap_or(text);
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    let is_time = |word: &str| {
        let parts: Vec<&str> = word.split(':').collect();
        let plain = |part: &&str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit() || b"*/,.".contains(&b));
        (2..=3).contains(&parts.len()) && parts.iter().all(plain)
    };
    let is_date = |word: &str| {
        word.matches('-').count() == 2 && word.bytes().all(|b| b.is_ascii_digit() || b"*-/,.~".contains(&b))
    };
    if !words.iter().any(|word| is_time(word) || is_date(word)) || words.len() > 4 {
        return None;
    }
    Some(match translate(&words, &is_time, &is_date) {
        Some(expression) => format!("write `{expression}`"),
        None => {
            "write minute, hour, day of month, month, day of week, e.g. `30 2 * * MON-FRI` for `Mon..Fri *-*-* 02:30`"
                .into()
        }
    })
}

/// The plain ones: weekdays, a date with stars, one time.
fn translate(words: &[&str], is_time: &dyn Fn(&str) -> bool, is_date: &dyn Fn(&str) -> bool) -> Option<String> {
    let (mut weekdays, mut day, mut month, mut time) = ("*".to_owned(), "*", "*", vec!["0", "0"]);
    for word in words {
        if is_time(word) {
            time = word.split(':').collect();
        } else if is_date(word) {
            let parts: Vec<&str> = word.split('-').collect();
            (month, day) = (parts[1], parts[2]);
            if parts[0] != "*" {
                return None;
            }
        } else {
            weekdays = weekday_list(word)?;
        }
    }
    // systemd wants both, cron takes either.
    if weekdays != "*" && day != "*" {
        return None;
    }
    let number =
        |text: &str| if text == "*" { Some("*".into()) } else { text.parse::<u32>().ok().map(|n| n.to_string()) };
    let (hour, minute) = (number(time[0])?, number(time[1])?);
    let second = time
        .get(2)
        .filter(|second| **second != "00")
        .map(|second| number(second))
        .map_or(Some(String::new()), |s| Some(s? + " "))?;
    Some(format!("{second}{minute} {hour} {} {} {weekdays}", number(day)?, number(month)?))
}

/// `Mon..Fri,Sun` as `MON-FRI,SUN`; what crosses the end of the week has no short form.
fn weekday_list(word: &str) -> Option<String> {
    let names = Field::DayOfWeek.names().0;
    let index = |day: &str| {
        let short = day.get(..3)?;
        names.iter().position(|name| short.eq_ignore_ascii_case(name))
    };
    let element = |text: &str| match text.split_once("..") {
        None => index(text).map(|day| names[day].to_owned()),
        Some((from, to)) => {
            let (from, to) = (index(from)?, index(to)?);
            // The week of systemd begins on Monday and ends on Sunday.
            ((from + 6) % 7 <= (to + 6) % 7).then(|| format!("{}-{}", names[from], names[to]))
        }
    };
    Some(word.split(',').map(element).collect::<Option<Vec<_>>>()?.join(","))
}
