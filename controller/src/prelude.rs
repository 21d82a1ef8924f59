//! What most controllers name, for one line: `use controller::prelude::*;`.
//!
//! Beside this crate's own names: `Api`, `Client` and the traits on objects of the Kubernetes client
//! beneath.

pub use kube_client::{Api, Client, ResourceExt};
pub use kube_core::{CustomResourceExt, Resource};

pub use crate::apply::Apply;
pub use crate::election::{ElectionOptions, Elector};
pub use crate::events::{EventRecorder, Notice, RecorderOptions, recorder};
pub use crate::informer::client;
pub use crate::server::{HttpServer, MetricsPage, ServerOptions, liveness, readiness};
pub use crate::{
    Action, BoxError, Context, Controller, ControllerOptions, Informer, InformerOptions, Lister,
    Manager, ManagerOptions, ObjectKey, ReconcileError, Reconciler, Signals, Source,
};
pub use crate::{finalizer, owners, predicate, upsert};
