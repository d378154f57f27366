//! Defines the routes of a listener: which pool or route serves a request.

use super::kept_filters::KeptFilters;
use super::route::{PoolRoute, Route};
use crate::options::{OptionsError, ProxyOptions, ProxyRoutes, RouteTree};

/// The targets of requests. The route of a prefix precedes that of a command.
pub(super) struct RouteTable {
    /// The routes by prefix of the key, the longest prefix first.
    prefixes: Vec<(String, RouteTarget)>,
    /// The routes by command.
    commands: Vec<(String, RouteTarget)>,
    default: RouteTarget,
}

/// The target of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RouteTarget {
    /// The pool with this number.
    Pool(usize),
    /// The route with this number.
    Route(usize),
    /// No server: the request is an error.
    Refuse,
    /// No server: reads are misses.
    Null,
}

/// Builds the routes of all listeners.
pub(super) struct RouteBuilder<'o> {
    options: &'o ProxyOptions,
    /// The caches and limits of the state before.
    before: Option<&'o KeptFilters>,
    pub(super) kept: KeptFilters,
    pub(super) routes: Vec<Route>,
}

impl<'o> RouteBuilder<'o> {
    pub(super) fn new(options: &'o ProxyOptions, before: Option<&'o KeptFilters>) -> RouteBuilder<'o> {
        RouteBuilder { options, before, kept: KeptFilters::default(), routes: Vec::new() }
    }

    /// Builds the routes with this name. Fails if a route names no pool.
    pub(super) fn table(&mut self, name: &str, trees: &ProxyRoutes) -> Result<RouteTable, OptionsError> {
        let mut prefixes = Vec::new();
        for (prefix, tree) in &trees.prefixes {
            prefixes.push((prefix.clone(), self.target(name, &format!("prefix {prefix}"), tree)?));
        }
        let mut commands = Vec::new();
        for (command, tree) in &trees.commands {
            commands.push((command.clone(), self.target(name, &format!("command {command}"), tree)?));
        }
        Ok(RouteTable { prefixes, commands, default: self.target(name, "default", &trees.default)? })
    }

    fn target(&mut self, table: &str, place: &str, tree: &RouteTree) -> Result<RouteTarget, OptionsError> {
        let number = |name: &str| {
            let number = self.options.pools.keys().position(|pool| pool == name);
            number.ok_or_else(|| OptionsError::new(format!("there is no pool {name}")))
        };
        let mut kept = |tree: &RouteTree, depth: usize| {
            self.kept.filter(self.before, table, (place.to_string(), depth), tree)
        };
        let route = Route::new(tree, &number, &mut kept)?;
        Ok(match (&route.filters[..], &route.pools) {
            ([], PoolRoute::Pool(pool)) => RouteTarget::Pool(*pool),
            ([], PoolRoute::Refuse) => RouteTarget::Refuse,
            ([], PoolRoute::Null) => RouteTarget::Null,
            _ => {
                self.routes.push(route);
                RouteTarget::Route(self.routes.len() - 1)
            }
        })
    }
}

impl RouteTable {
    /// Returns the target of the requests for a key. `command` begins with the command word.
    #[inline]
    pub(super) fn target_of(&self, command: &[u8], key: &[u8]) -> RouteTarget {
        let prefix = self.prefixes.iter().find(|(prefix, _)| key.starts_with(prefix.as_bytes()));
        let target = prefix.map(|(_, target)| *target).or_else(|| self.target_of_command(command));
        target.unwrap_or(self.default)
    }

    /// Returns the target of a command that has a route of its own.
    #[inline]
    pub(super) fn target_of_command(&self, command: &[u8]) -> Option<RouteTarget> {
        if self.commands.is_empty() {
            return None;
        }
        let word = command.split(|&byte| byte <= b' ').next().unwrap_or_default();
        let route = self.commands.iter().find(|(command, _)| command.as_bytes() == word);
        route.map(|(_, target)| *target)
    }

    /// Returns all targets.
    pub(super) fn targets(&self) -> impl Iterator<Item = RouteTarget> {
        self.prefixes.iter().chain(&self.commands).map(|(_, target)| *target).chain([self.default])
    }
}
