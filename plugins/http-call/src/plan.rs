//! The job's `config`, read and checked.

use std::{error::Error, fmt, ops::RangeInclusive};

/// A call, as the config says it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// In upper case.
    pub method: String,
    /// Where to.
    pub url: String,
    /// Name and value, from `headers.NAME`.
    pub headers: Vec<(String, String)>,
    /// What is sent.
    pub body: Option<Template>,
    expected: Vec<RangeInclusive<u16>>,
}

/// What a body can mention. The attempt is not among it: one key stands for one body.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Values {
    /// `billing/nightly@2026-09-17T02:00:00Z`
    pub launch: String,
    /// `2026-09-17T02:00:00Z`
    pub tick: String,
    /// The same in the job's zone.
    pub local: String,
    /// The idempotency key.
    pub key: String,
}

/// A text with places for values: `{launch}`, and `{{` for a brace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template(Vec<Part>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Value(Name),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Name {
    Launch,
    Tick,
    Local,
    Key,
}

/// A config that cannot be carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanError(String);

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for PlanError {}

const KNOWN: &str = "method, url, body, expect_status and headers.NAME";

impl Plan {
    /// Reads the config.
    ///
    /// # Errors
    /// A name that is not known, a value that cannot be read, no `url`.
    pub fn read(config: Vec<(String, String)>) -> Result<Self, PlanError> {
        let mut plan = Self {
            method: "POST".into(),
            url: String::new(),
            headers: Vec::new(),
            body: None,
            expected: vec![200..=299],
        };
        for (name, value) in config {
            match name.as_str() {
                "method" => plan.method = value.to_ascii_uppercase(),
                "url" => plan.url = value,
                "body" => plan.body = Some(Template::parse(&value)?),
                "expect_status" => plan.expected = parse_statuses(&value)?,
                other => match other.strip_prefix("headers.") {
                    Some(header) => plan.headers.push((header.to_owned(), value)),
                    None => {
                        let message = format!("the config has `{other}`, which means nothing here; known are {KNOWN}");
                        return Err(PlanError(message));
                    }
                },
            }
        }
        if plan.url.is_empty() {
            return Err(PlanError("the config lacks `url`".into()));
        }
        Ok(plan)
    }

    /// Whether the method changes nothing, so that no key is needed.
    pub fn is_safe(&self) -> bool {
        ["GET", "HEAD", "OPTIONS"].contains(&self.method.as_str())
    }

    /// Whether this status is success.
    pub fn expects(&self, status: u16) -> bool {
        self.expected.iter().any(|range| range.contains(&status))
    }
}

/// `200-299, 404`
fn parse_statuses(text: &str) -> Result<Vec<RangeInclusive<u16>>, PlanError> {
    let refuse = || PlanError(format!("`expect_status = {text}`: expected numbers and ranges, e.g. `200-299, 404`"));
    let number = |text: &str| text.trim().parse::<u16>().ok().filter(|n| (100..=599).contains(n));
    text.split(',')
        .map(|part| {
            let (from, to) = part.split_once('-').unwrap_or((part, part));
            let (from, to) = (number(from).ok_or_else(refuse)?, number(to).ok_or_else(refuse)?);
            if from <= to { Ok(from..=to) } else { Err(refuse()) }
        })
        .collect()
}

impl Template {
    /// Reads a template.
    ///
    /// # Errors
    /// A name that is not known, a brace without its partner.
    pub fn parse(text: &str) -> Result<Self, PlanError> {
        let mut parts = Vec::new();
        let mut plain = String::new();
        let mut rest = text;
        while let Some(brace) = rest.find(['{', '}']) {
            plain.push_str(&rest[..brace]);
            let sign = &rest[brace..=brace];
            rest = &rest[brace + 1..];
            if let Some(after) = rest.strip_prefix(sign) {
                plain.push_str(sign);
                rest = after;
                continue;
            }
            let name = if sign == "{" { rest.find('}').map(|end| &rest[..end]) } else { None };
            let name =
                name.ok_or_else(|| PlanError(format!("`body` has a lone `{sign}`; write `{sign}{sign}` for a brace")))?;
            parts.push(Part::Text(std::mem::take(&mut plain)));
            parts.push(Part::Value(Name::parse(name)?));
            rest = &rest[name.len() + 1..];
        }
        plain.push_str(rest);
        parts.push(Part::Text(plain));
        Ok(Self(parts))
    }

    /// The text with its values.
    pub fn fill(&self, values: &Values) -> String {
        let part = |part: &Part| match part {
            Part::Text(text) => text.clone(),
            Part::Value(Name::Launch) => values.launch.clone(),
            Part::Value(Name::Tick) => values.tick.clone(),
            Part::Value(Name::Local) => values.local.clone(),
            Part::Value(Name::Key) => values.key.clone(),
        };
        self.0.iter().map(part).collect()
    }
}

impl Name {
    fn parse(text: &str) -> Result<Self, PlanError> {
        match text {
            "launch" => Ok(Self::Launch),
            "tick" => Ok(Self::Tick),
            "local" => Ok(Self::Local),
            "key" => Ok(Self::Key),
            other => Err(PlanError(format!(
                "`body` mentions `{{{other}}}`; known are {{launch}}, {{tick}}, {{local}} and {{key}}"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(config: &[(&str, &str)]) -> Result<Plan, PlanError> {
        Plan::read(config.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect())
    }

    #[test]
    fn a_url_alone_is_a_post_that_expects_success() {
        let plan = read(&[("url", "https://a.test")]).unwrap();
        assert_eq!((plan.method.as_str(), plan.is_safe()), ("POST", false));
        assert!(plan.expects(204) && !plan.expects(302) && !plan.expects(404));
        assert!(read(&[("url", "https://a.test"), ("method", "get")]).unwrap().is_safe());
    }

    #[test]
    fn statuses_are_numbers_and_ranges() {
        let plan = read(&[("url", "u"), ("expect_status", "200-204, 404")]).unwrap();
        assert_eq!([200, 204, 205, 404].map(|s| plan.expects(s)), [true, true, false, true]);
        for wrong in ["", "20", "299-200", "200-", "ok", "200,,201", "600"] {
            assert!(read(&[("url", "u"), ("expect_status", wrong)]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_body_mentions_the_tick_and_the_key() {
        let values = Values { tick: "T".into(), key: "K".into(), ..Values::default() };
        let fill = |text: &str| Template::parse(text).map(|t| t.fill(&values));
        assert_eq!(fill(r#"{{"at":"{tick}","key":"{key}"}}"#), Ok(r#"{"at":"T","key":"K"}"#.into()));
        assert_eq!(fill("plain"), Ok("plain".into()));
        for wrong in ["{", "}", "{tick", "{attempt}", "{}"] {
            assert!(fill(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_not_known_is_refused_by_name() {
        let error = read(&[("url", "u"), ("colour", "red")]).unwrap_err().to_string();
        assert!(error.contains("`colour`") && error.contains("headers.NAME"), "{error}");
        assert!(read(&[]).unwrap_err().to_string().contains("lacks `url`"));
    }
}
