//! Server-side printing: the columns and rows of `as=Table` answers.

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

/// What a row of a table carries beside its cells (`includeObject`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum IncludeObject {
    /// Nothing.
    None,
    /// The object's metadata, as a PartialObjectMetadata.
    #[default]
    Metadata,
    /// The whole object.
    Object,
}

/// The columns of one kind and how to fill them.
#[derive(Clone, Debug)]
pub(crate) struct Printer {}

impl Printer {
    /// The printer of a built-in kind; kinds without one of their own get Name and Created At.
    pub(crate) fn built_in(group: &str, kind: &str) -> Self {
        unimplemented!("{group} {kind}")
    }

    /// The printer of a custom resource by the version's `additionalPrinterColumns`.
    pub(crate) fn custom(additional_printer_columns: Option<&Value>) -> Self {
        unimplemented!("{additional_printer_columns:?}")
    }

    /// The Table of `objects`. `list_metadata` is the list's `metadata` (or the object's, for one
    /// object); `headers` is false for all but the first event of a watch; `api_version` is the
    /// table's own version (`meta.k8s.io/v1`).
    pub(crate) fn table(
        &self,
        objects: &[&Value],
        list_metadata: Value,
        options: &TableOptions,
    ) -> Value {
        unimplemented!("{objects:?} {list_metadata} {options:?}")
    }
}

/// How a Table is to be made.
#[derive(Clone, Debug)]
pub(crate) struct TableOptions {
    /// `apiVersion` of the Table, e.g. `meta.k8s.io/v1`.
    pub(crate) api_version: String,
    /// What each row carries.
    pub(crate) include_object: IncludeObject,
    /// Whether `columnDefinitions` is filled (false after the first event of a watch).
    pub(crate) headers: bool,
    /// The time by which ages are told.
    pub(crate) now: Timestamp,
}
