//! Answers the requests of the admin page: JSON under `/api/`, which docs/admin-page.md describes.
//!
//! ```text
//! status       the figures of the server, its databases and its replicas
//! records      search of keys, one record, changes of it
//! connections  the open connections
//! slow_requests  the log of slow and large requests
//! exports      checkpoints and backups
//! query        the parameters of a request
//! access       the requests that are permitted
//! ```

mod access;
mod connections;
mod exports;
mod query;
mod records;
mod slow_requests;
mod status;

pub(super) use access::ApiAccess;

use super::http::{HttpMethod, HttpRequest, HttpResponse, HttpStatus};
use crate::execution::LocalDatabase;
use crate::observation::turn_times::TurnTimeSums;
use crate::shared::SharedState;
use exports::RequestedExport;
use query::ApiQuery;
use serde_json::{Value, json};
use std::sync::Arc;

/// The content type of all answers.
const JSON: &str = "application/json";

/// Why a request is not answered: the status, and a sentence for the user.
pub(super) struct ApiError(HttpStatus, String);

impl ApiError {
    fn new(status: HttpStatus, why: impl Into<String>) -> ApiError {
        ApiError(status, why.into())
    }

    fn not_found(what: &str) -> ApiError {
        ApiError::new(HttpStatus::NotFound, format!("there is no {what}"))
    }

    fn response(self) -> HttpResponse {
        let ApiError(status, why) = self;
        HttpResponse::whole(status, JSON, json!({ "error": why }).to_string().into_bytes())
    }
}

impl From<todana_core::Error> for ApiError {
    fn from(error: todana_core::Error) -> ApiError {
        ApiError::new(HttpStatus::Failed, error.to_string())
    }
}

type ApiResult = Result<Value, ApiError>;

pub(super) struct AdminApi {
    shared: Arc<SharedState>,
    databases: Vec<LocalDatabase>,
    access: ApiAccess,
    export: RequestedExport,
    /// The times of requests at the last event.
    times: TurnTimeSums,
}

impl AdminApi {
    pub(super) fn new(shared: &Arc<SharedState>, access: ApiAccess) -> AdminApi {
        let (databases, times) = (LocalDatabase::all(shared), status::turn_times(shared));
        let (shared, export) = (Arc::clone(shared), RequestedExport::default());
        AdminApi { shared, databases, access, export, times }
    }

    /// Returns the refusal of a request that is not permitted. Its body may be missing.
    pub(super) fn refuse(&self, head: &HttpRequest) -> Option<HttpResponse> {
        self.access.check(head).err().map(ApiError::response)
    }

    /// Answers a permitted request for this path below `/api/`.
    pub(super) fn answer(&mut self, path: &str, request: &HttpRequest) -> HttpResponse {
        if (path, request.method) == ("events", HttpMethod::Get) {
            return HttpResponse::events();
        }
        match self.value(path, request) {
            Ok(value) => HttpResponse::whole(HttpStatus::Ok, JSON, value.to_string().into_bytes()),
            Err(error) => error.response(),
        }
    }

    fn value(&self, path: &str, request: &HttpRequest) -> ApiResult {
        let query = ApiQuery::parse(&request.query);
        match (path, request.method) {
            (_, HttpMethod::Head) => Err(ApiError::new(HttpStatus::MethodNotAllowed, "use GET")),
            ("status", HttpMethod::Get) => {
                Ok(status::status(&self.shared, &status::turn_times(&self.shared)))
            }
            ("figures", HttpMethod::Get) => Ok(status::figures()),
            ("connections", HttpMethod::Get) => connections::list(&self.shared, &query),
            ("export", HttpMethod::Get) => Ok(self.export.state()),
            ("checkpoint", HttpMethod::Post) => self.export.checkpoint(&self.shared, self.database(&query)?),
            ("backup", HttpMethod::Post) => self.export.backup(&self.shared, self.database(&query)?),
            ("slow-requests", HttpMethod::Get) => Ok(slow_requests::list(&self.shared)),
            ("records" | "hot-keys", HttpMethod::Get) if !self.shared.options.limits.dump_allowed => {
                Err(ApiError::new(HttpStatus::Forbidden, "the server was started with -X: it lists no keys"))
            }
            ("records", HttpMethod::Get) => records::search(self.database(&query)?, &query),
            ("hot-keys", HttpMethod::Get) => Ok(records::hot_keys(self.database(&query)?)),
            ("record", HttpMethod::Get) => records::read(self.database(&query)?, &query),
            ("record", HttpMethod::Post) => records::read_for_change(self.database(&query)?, &query),
            ("record", HttpMethod::Put) => {
                let limits = &self.shared.options.limits;
                records::store(self.database(&query)?, &query, &request.body, limits)
            }
            ("record", HttpMethod::Delete) => records::remove(self.database(&query)?, &query),
            _ => Err(ApiError::not_found("such request")),
        }
    }

    /// Returns an event with the status of the server. The times of requests are those since the
    /// last event.
    pub(super) fn status_event(&mut self) -> Vec<u8> {
        let times = status::turn_times(&self.shared);
        let recent = times.since(&std::mem::replace(&mut self.times, times.clone()));
        format!("event: status\ndata: {}\n\n", status::status(&self.shared, &recent)).into_bytes()
    }

    /// Returns the database that the parameter `db` names, by its name or its number.
    fn database(&self, query: &ApiQuery) -> Result<&LocalDatabase, ApiError> {
        if self.shared.lifecycle.is_loading() {
            return Err(ApiError::new(HttpStatus::Unavailable, "the server is loading its data"));
        }
        let name = query.text("db").unwrap_or_else(|| "0".into());
        let by_name = self.databases.iter().find(|database| database.served().name.label() == name);
        let by_number = || self.databases.get(name.parse::<usize>().ok()?);
        by_name.or_else(by_number).ok_or_else(|| ApiError::not_found("such database"))
    }
}
