//! Answers requests for the admin pages.

use super::api::{AdminApi, ApiAccess};
use super::connection::RequestAnswers;
use super::exposition;
use super::http::{HttpRequest, HttpResponse, HttpStatus};
use super::metrics::MetricsPage;
use crate::handle::StopStage;
use crate::observation::measurements::takes_writes;
use crate::shared::SharedState;
use std::fmt::Write;
use std::sync::Arc;
use todana_protocol::kyoto::is_own_host;

const INDEX: &str = "todana: /metrics /metrics/totals /healthz /readyz\n";

/// The files of the page, with their paths and types. uPlot 1.6.32 draws the charts (MIT licence,
/// github.com/leeoniya/uPlot); its files are those of its package `uplot`, unchanged.
const FILES: [(&str, &str, &[u8]); 5] = [
    ("/", "text/html; charset=utf-8", include_bytes!("page/index.html")),
    ("/page.css", "text/css; charset=utf-8", include_bytes!("page/page.css")),
    ("/page.js", "text/javascript; charset=utf-8", include_bytes!("page/page.js")),
    ("/uplot.css", "text/css; charset=utf-8", include_bytes!("page/uPlot.min.css")),
    ("/uplot.js", "text/javascript; charset=utf-8", include_bytes!("page/uPlot.iife.min.js")),
];

pub(super) struct AdminPages {
    shared: Arc<SharedState>,
    metrics: MetricsPage,
    api: AdminApi,
}

impl RequestAnswers for AdminPages {
    fn refuse(&self, head: &HttpRequest) -> Option<HttpResponse> {
        let hosts = &self.shared.options.protocols.http_hosts;
        let is_own = head.host.as_ref().is_none_or(|host| is_own_host(host.as_bytes(), hosts));
        if !is_own && (head.is_of_browser || !hosts.is_empty()) {
            let text = "this host name is not the server's; --http-host allows it\n";
            return Some(HttpResponse::text(HttpStatus::Forbidden, text));
        }
        if head.path.starts_with("/api/") {
            return self.api.refuse(head);
        }
        (!head.method.only_reads()).then(|| HttpResponse::refusal(HttpStatus::MethodNotAllowed))
    }

    fn answer(&mut self, request: &HttpRequest) -> HttpResponse {
        if let Some(refusal) = self.refuse(request) {
            return refusal;
        }
        match request.path.strip_prefix("/api/") {
            Some(path) => self.api.answer(path, request),
            None => self.page(request),
        }
    }
}

impl AdminPages {
    pub(super) fn new(shared: Arc<SharedState>, access: ApiAccess) -> AdminPages {
        let api = AdminApi::new(&shared, access);
        AdminPages { shared, metrics: MetricsPage::default(), api }
    }

    /// Returns an event with the status of the server.
    pub(super) fn status_event(&mut self) -> Vec<u8> {
        self.api.status_event()
    }

    /// Returns the response of a page.
    fn page(&mut self, request: &HttpRequest) -> HttpResponse {
        if let Some((_, kind, file)) = FILES.iter().find(|(path, ..)| *path == request.path)
            && (request.path != "/" || request.is_of_browser)
        {
            return HttpResponse::whole(HttpStatus::Ok, kind, *file);
        }
        match request.path.as_str() {
            "/" => HttpResponse::text(HttpStatus::Ok, self.index()),
            "/healthz" if self.shared.lifecycle.is_loading() => {
                HttpResponse::text(HttpStatus::Ok, "loading\n")
            }
            // Any answer shows that the process is alive. A server that is stopping should not be
            // restarted, so it is reported as healthy, too.
            "/healthz" => HttpResponse::text(HttpStatus::Ok, "ok\n"),
            "/readyz" => self.readiness(),
            "/metrics" => self.metrics(true),
            "/metrics/totals" => self.metrics(false),
            _ => HttpResponse::text(HttpStatus::NotFound, format!("no such page\n{INDEX}")),
        }
    }

    /// Returns the list of pages, and warnings for the operator.
    fn index(&self) -> String {
        let mut text = INDEX.to_string();
        let flags_lost = self.shared.replicas.flags_lost();
        if flags_lost > 0 {
            let _ = writeln!(
                text,
                "warning: {flags_lost} records were sent to replicas without their client flags: clients that keep the types of \
                 values in flags read other types there (docs/replication-with-kyoto.md)"
            );
        }
        text
    }

    fn metrics(&mut self, with_classes: bool) -> HttpResponse {
        let body = self.metrics.text(&self.shared, with_classes);
        HttpResponse::whole(HttpStatus::Ok, exposition::CONTENT_TYPE, body.into_bytes())
    }

    fn log_is_stuck(&self) -> bool {
        !self.shared.databases.iter().all(takes_writes)
    }

    /// Returns the answer to `/readyz`: whether new clients should use this server, or why not.
    fn readiness(&self) -> HttpResponse {
        match self.shared.lifecycle.stopping() {
            StopStage::No if self.shared.lifecycle.is_loading() => {
                HttpResponse::text(HttpStatus::Unavailable, "loading\n")
            }
            StopStage::No if self.shared.lifecycle.has_not_loaded() => {
                HttpResponse::text(HttpStatus::Unavailable, "no data\n")
            }
            StopStage::No if self.log_is_stuck() => {
                HttpResponse::text(HttpStatus::Unavailable, "no writes\n")
            }
            StopStage::No => match self.shared.proxy.as_ref().and_then(|proxy| proxy.dead_pool()) {
                Some(pool) => {
                    HttpResponse::text(HttpStatus::Unavailable, format!("no server of pool {pool} is up\n"))
                }
                None => HttpResponse::text(HttpStatus::Ok, "ready\n"),
            },
            StopStage::Drain | StopStage::AtOnce => HttpResponse::text(HttpStatus::Unavailable, "stopping\n"),
        }
    }
}
