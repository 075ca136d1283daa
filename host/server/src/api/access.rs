//! Who asks, and whether they may. Each request passes here twice: before anything of it is read, and, where it is
//! answered, with all that was committed before.

use axum::{
    extract::{ConnectInfo, FromRequestParts, MatchedPath, Query, RawPathParams, Request, State},
    http::{Extensions, HeaderMap, HeaderName, HeaderValue, Method, Uri, header::AUTHORIZATION, request::Parts},
    middleware::Next,
    response::{IntoResponse, Response},
};
use serde::de::DeserializeOwned;
use tickhost_ledger::{LaunchId, access::Role, command::IDENTITY};
use tickhost_replica::Caller;

use super::{
    Problem,
    forward::FORWARDED,
    listen::ClientAddress,
    routes::{ForNamespace, LaunchQuery, LogsQuery},
};
use crate::{
    host::Host,
    token::{AccessToken, DEVELOPER, LOCAL, NOBODY, operator_of},
};

/// Set by the node that passes a request on: the address that it came from.
const FROM: HeaderName = HeaderName::from_static("tickhost-from");
/// Set by the node that passes a request on: whoever asks may read that node's data directory.
const OPERATOR: HeaderName = HeaderName::from_static("tickhost-operator");

/// Somebody who may ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Who {
    /// The name of the token, or the node whose operator it is.
    name: String,
    pub(super) role: Role,
    /// `None`: all of them.
    pub(super) namespace: Option<String>,
    /// Until when, RFC 3339; `None` for a node's operator.
    pub(super) expires_at: Option<String>,
    from: String,
}

impl Who {
    /// Who, and from where, as the ledger keeps it.
    pub(super) fn by(&self) -> String {
        format!("{}@{}", self.name, self.from)
    }

    /// Whether they may see what is that namespace's.
    pub(super) fn sees(&self, namespace: &str) -> bool {
        self.namespace.as_ref().is_none_or(|own| own == namespace)
    }

    fn check(&self, need: &Need) -> Result<(), Problem> {
        if self.role < need.role {
            return Err(Problem::forbidden(format!(
                "this is for {}s, and `{}` is a {}'s token; ask an operator for another one",
                need.role.name(),
                self.name,
                self.role.name()
            )));
        }
        let Some(own) = &self.namespace else { return Ok(()) };
        match &need.scope {
            Scope::Own => Ok(()),
            Scope::Namespace(namespace) if namespace == own => Ok(()),
            Scope::Namespace(namespace) => Err(Problem::forbidden(format!(
                "`{}` is a token for namespace `{own}`, and this is about namespace `{namespace}`",
                self.name
            ))),
            Scope::Cluster => Err(Problem::forbidden(format!(
                "`{}` is a token for namespace `{own}`, and this is about the whole cluster; where there is a \
                 `?namespace=`, write `{own}`",
                self.name
            ))),
        }
    }
}

/// Handlers get it from the request: [`authorize`] has put it there.
impl<S: Sync> FromRequestParts<S> for Who {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let who = parts.extensions.get::<Self>().cloned();
        who.ok_or_else(|| Problem::fault("nobody has asked who this is"))
    }
}

/// What it takes to have a request answered.
#[derive(Debug, PartialEq, Eq)]
struct Need {
    role: Role,
    scope: Scope,
}

/// What a request is about.
#[derive(Debug, PartialEq, Eq)]
enum Scope {
    /// What the asker may see, and nothing else.
    Own,
    /// What is one namespace's.
    Namespace(String),
    /// Everything.
    Cluster,
}

impl Scope {
    fn of(namespace: Option<String>) -> Self {
        namespace.map_or(Self::Cluster, Self::Namespace)
    }
}

const JOB: &str = "/v1/jobs/{namespace}/{name}";
const COMPONENT: &str = "/v1/components/{digest}";

/// What it takes to have that asked. A route that is not named here is for operators.
fn need(method: &Method, route: &str, namespace: Option<&str>, uri: &Uri) -> Result<Need, Problem> {
    let of_job = || Scope::of(namespace.map(ToOwned::to_owned));
    let of_launch = |id: &str| id.parse::<LaunchId>().map(|id| Scope::Namespace(id.job.namespace));
    let of_component = || query::<ForNamespace>(uri).map(|query| Scope::of(query.namespace));
    let under_job = route.strip_prefix(JOB);
    let (role, scope) = match (method.as_str(), route, under_job) {
        ("GET", "/v1/status" | "/v1/whoami" | "/v1/jobs" | "/v1/namespaces", _) => (Role::Viewer, Scope::Own),
        ("GET", "/v1/launch", _) => (Role::Viewer, of_launch(&query::<LaunchQuery>(uri)?.id)?),
        ("GET", "/v1/logs", _) => (Role::Viewer, of_launch(&query::<LogsQuery>(uri)?.launch)?),
        ("GET", COMPONENT, _) => (Role::Viewer, of_component()?),
        ("GET", "/v1/nodes" | "/metrics", _) => (Role::Viewer, Scope::Cluster),
        ("GET", _, Some("" | "/ticks" | "/gaps")) => (Role::Viewer, of_job()),
        ("POST", "/v1/components", _) | ("DELETE", COMPONENT, _) => (Role::Deployer, of_component()?),
        ("PUT" | "DELETE", JOB, _) => (Role::Deployer, of_job()),
        ("POST", _, Some("/pause" | "/resume" | "/trigger")) => (Role::Deployer, of_job()),
        _ => (Role::Operator, Scope::Cluster),
    };
    Ok(Need { role, scope })
}

fn query<T: DeserializeOwned>(uri: &Uri) -> Result<T, Problem> {
    let Query(query) = Query::try_from_uri(uri).map_err(Problem::unreadable)?;
    Ok(query)
}

/// What somebody shows for it that they may ask.
enum Shown {
    /// That they may read a node's data directory. The one that says so is this node, or one that votes.
    Operator(String),
    Token(AccessToken),
}

/// The node that has passed the request on, if one has.
fn passed_on_by(extensions: &Extensions) -> Option<u64> {
    extensions.get::<Caller>().and_then(|Caller(node)| *node)
}

fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// The address that the request comes from.
fn from(headers: &HeaderMap, extensions: &Extensions) -> String {
    let address = match passed_on_by(extensions) {
        Some(_) => text(headers, FROM).map(ToOwned::to_owned),
        None => extensions
            .get::<ConnectInfo<ClientAddress>>()
            .map(|ConnectInfo(ClientAddress(address))| address.ip().to_string()),
    };
    address.unwrap_or_else(|| "unknown".into())
}

fn shown(host: &Host, headers: &HeaderMap, extensions: &Extensions) -> Result<Shown, Problem> {
    let Some(operator) = host.operator else { return Ok(Shown::Operator(DEVELOPER.into())) };
    let token = text(headers, AUTHORIZATION);
    if let Some(node) = passed_on_by(extensions) {
        // Nodes that only execute are trusted with less: whoever has taken one over must not have the cluster.
        if headers.contains_key(OPERATOR) {
            let is_trusted = host.replica.voters().contains(&node);
            return is_trusted.then(|| Shown::Operator(operator_of(node))).ok_or_else(|| {
                Problem::forbidden(format!(
                    "node {node} does not vote, so its own token is good for what that node answers itself; use a token of \
                     `tickhost token create`, or that of a node that votes"
                ))
            });
        }
        // An older node has asked nobody. It is gone once the upgrade is done.
        let is_older = host.replica.read(|state| state.below(IDENTITY).any(|(older, _)| older == node));
        if is_older && token.is_none() {
            return Ok(Shown::Operator(operator_of(node)));
        }
    }
    let token = token.ok_or_else(|| {
        Problem::unauthorized(
            "this host asks who you are; send `Authorization: Bearer TOKEN`. With the command line: `tickhost login`, or the \
             token in TICKHOST_TOKEN. An operator makes one with `tickhost token create`; the first one is in \
             `operator.token` in the data directory of each node that votes",
        )
    })?;
    let token = token
        .strip_prefix("Bearer ")
        .ok_or_else(|| Problem::unauthorized("`Authorization` is of another kind; expected `Bearer TOKEN`"))?;
    let token: AccessToken = token.parse().map_err(Problem::unauthorized)?;
    match token.name == LOCAL {
        true if token.digest() == operator => Ok(Shown::Operator(operator_of(host.replica.node()))),
        true => Err(unknown(&token)),
        false => Ok(Shown::Token(token)),
    }
}

fn unknown(token: &AccessToken) -> Problem {
    Problem::unauthorized(format!(
        "token `{}` is not known here: it was revoked, is another cluster's, or is not whole",
        token.name
    ))
}

/// Who that is, as far as this node knows at this moment.
fn known(host: &Host, shown: &Shown, from: String) -> Result<Who, Problem> {
    let token = match shown {
        Shown::Operator(name) => {
            let name = name.clone();
            return Ok(Who { name, role: Role::Operator, namespace: None, expires_at: None, from });
        }
        Shown::Token(token) => token,
    };
    let access = host.replica.read(|state| state.access(&token.name).cloned());
    let access = access.filter(|access| access.digest == token.digest()).ok_or_else(|| unknown(token))?;
    if access.expires_at <= host.clock.now() {
        return Err(Problem::unauthorized(format!(
            "token `{}` has expired: it was good until {}; ask an operator for another one",
            token.name, access.expires_at
        )));
    }
    let expires_at = Some(access.expires_at.to_string());
    Ok(Who { name: token.name.clone(), role: access.role, namespace: access.namespace, expires_at, from })
}

/// Lets nobody in who is unknown, and has written down what was refused.
pub(super) async fn identify(State(host): State<Host>, mut request: Request, next: Next) -> Response {
    if passed_on_by(request.extensions()).is_none() {
        // Only nodes say these.
        for name in [FROM, OPERATOR, FORWARDED] {
            request.headers_mut().remove(name);
        }
    }
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let from = from(request.headers(), request.extensions());
    let who = match shown(&host, request.headers(), request.extensions()) {
        Ok(shown) => match known(&host, &shown, from.clone()) {
            // It may have been given out just now.
            Err(_) if host.replica.catch_up().await.is_ok() => known(&host, &shown, from.clone()),
            known => known,
        },
        Err(problem) => Err(problem),
    };
    let (by, response) = match who {
        Ok(who) => (who.by(), next.run(request).await),
        Err(problem) => (format!("{NOBODY}@{from}"), problem.into_response()),
    };
    // What another node has answered, that one has written down.
    if let Some(problem) = response.extensions().get::<Problem>()
        && problem.is_refusal_of(&method)
    {
        host.refusals.add(host.clock.now(), &by, method.as_str(), &path, &problem.detail);
    }
    response
}

/// Lets nobody do what they may not.
pub(super) async fn authorize(
    State(host): State<Host>,
    route: MatchedPath,
    params: RawPathParams,
    mut request: Request,
    next: Next,
) -> Response {
    let route = route.as_str();
    // Where other nodes pass it on.
    let route = route.strip_prefix("/api").unwrap_or(route);
    let namespace = params.iter().find(|(name, _)| *name == "namespace").map(|(_, value)| value);
    let allowed = shown(&host, request.headers(), request.extensions()).and_then(|shown| {
        let who = known(&host, &shown, from(request.headers(), request.extensions()))?;
        who.check(&need(request.method(), route, namespace, request.uri())?)?;
        Ok(who)
    });
    match allowed {
        Ok(who) => {
            request.extensions_mut().insert(who);
            next.run(request).await
        }
        Err(problem) => problem.into_response(),
    }
}

/// Has another node know from where somebody asks, and, where it could not know that, that it is this one's operator.
pub(super) fn vouch(host: &Host, parts: &mut Parts) {
    if let Ok(from) = HeaderValue::from_str(&from(&parts.headers, &parts.extensions)) {
        parts.headers.insert(FROM, from);
    }
    if let Ok(Shown::Operator(_)) = shown(host, &parts.headers, &parts.extensions) {
        parts.headers.remove(AUTHORIZATION);
        parts.headers.insert(OPERATOR, HeaderValue::from_static("yes"));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn needs(method: &str, route: &str, uri: &str) -> Need {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        need(&method, route, Some("billing"), &uri.parse().unwrap()).unwrap()
    }

    fn token(role: Role, namespace: Option<&str>) -> Who {
        let namespace = namespace.map(ToOwned::to_owned);
        Who { name: "x".into(), role, namespace, expires_at: None, from: "10.0.0.1".into() }
    }

    #[test]
    fn what_nobody_has_thought_of_is_for_operators() {
        for (method, route) in [
            ("PATCH", JOB),
            ("HEAD", "/v1/jobs"),
            ("GET", "/v1/audit"),
            ("POST", "/v1/cluster/token"),
            ("PUT", "/v1/namespaces/{namespace}"),
            ("POST", "/v1/jobs/{namespace}/{name}/something"),
            ("GET", "/v1/new"),
        ] {
            assert_eq!(
                needs(method, route, "/"),
                Need { role: Role::Operator, scope: Scope::Cluster },
                "{method} {route}"
            );
        }
    }

    #[test]
    fn a_namespace_is_taken_from_what_the_handler_reads_too() {
        let billing = || Scope::Namespace("billing".into());
        let other = || Scope::Namespace("other".into());
        for (method, route, uri, role, scope) in [
            ("GET", JOB, "/", Role::Viewer, billing()),
            ("PUT", JOB, "/", Role::Deployer, billing()),
            ("POST", "/v1/jobs/{namespace}/{name}/trigger", "/", Role::Deployer, billing()),
            ("GET", "/v1/launch", "/?id=other%2Fx@2026-09-17T02:00:00Z", Role::Viewer, other()),
            ("GET", "/v1/logs", "/?launch=other/x@2026-09-17T02:00:00Z&attempt=1", Role::Viewer, other()),
            ("POST", "/v1/components", "/?namespace=other", Role::Deployer, other()),
            ("POST", "/v1/components", "/", Role::Deployer, Scope::Cluster),
            ("DELETE", COMPONENT, "/?namespace=other", Role::Deployer, other()),
        ] {
            assert_eq!(needs(method, route, uri), Need { role, scope }, "{method} {route} {uri}");
        }
        for uri in ["/?namespace=a&namespace=b", "/?namespac=a"] {
            let refused = need(&Method::POST, "/v1/components", None, &uri.parse().unwrap());
            assert!(refused.is_err(), "{uri}");
        }
    }

    #[test]
    fn a_role_reaches_down_and_a_namespace_no_further_than_itself() {
        let of = |role, scope| Need { role, scope };
        let billing = || Scope::Namespace("billing".into());
        let may = |who: &Who, need: Need| who.check(&need).is_ok();
        for (who, view, deploy, operate) in [
            (token(Role::Viewer, None), true, false, false),
            (token(Role::Deployer, None), true, true, false),
            (token(Role::Operator, None), true, true, true),
            (token(Role::Deployer, Some("billing")), true, true, false),
            (token(Role::Deployer, Some("other")), false, false, false),
        ] {
            assert_eq!(may(&who, of(Role::Viewer, billing())), view, "{who:?}");
            assert_eq!(may(&who, of(Role::Deployer, billing())), deploy, "{who:?}");
            assert_eq!(may(&who, of(Role::Operator, Scope::Cluster)), operate, "{who:?}");
            assert!(may(&who, of(Role::Viewer, Scope::Own)));
        }
        assert!(!may(&token(Role::Deployer, Some("billing")), of(Role::Viewer, Scope::Cluster)));
    }
}
