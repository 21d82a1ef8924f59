//! Deletion of all objects that selectors match.

use std::{ops::ControlFlow, sync::Arc};

use super::{
    Api, Call,
    delete::Deletion,
    options::{DeleteOptions, ListOptions},
    present::{ListMetadata, View},
    select::Selection,
};
use crate::{
    error::{ApiError, ApiResult},
    http::response::ApiResponse,
    store::StoredObject,
};

impl Api {
    pub(super) fn delete_collection(&self, call: &mut Call) -> ApiResult<ApiResponse> {
        if call.resource.namespaced && call.namespace().is_none() {
            return Err(ApiError::method_not_allowed());
        }
        let view = View::for_list(self, call)?;
        let options = DeleteOptions::parse(call)?;
        let list = ListOptions::parse(&call.query)?;
        let selection = Selection::parse(call)?;
        let resource = Arc::clone(&call.resource);
        let mut meant = Vec::new();
        let scanned = resource
            .collection
            .scan(selection.scope(), None, None, |key, object| {
                if list.limit.is_some_and(|limit| meant.len() == limit) {
                    return ControlFlow::Break(());
                }
                if selection.matches(&resource, key, object) {
                    meant.push((key.clone(), Arc::clone(object)));
                }
                ControlFlow::Continue(())
            });
        let revision = scanned.unwrap_or_else(|compacted| compacted.oldest);
        let mut deleted: Vec<Arc<StoredObject>> = Vec::new();
        for (key, object) in meant {
            match self.delete_object(&resource, &key, &options) {
                Ok(Deletion::Removed(last)) => deleted.push(last),
                Ok(Deletion::Marked(marked)) => deleted.push(marked),
                Ok(Deletion::WouldMark(_) | Deletion::WouldRemove(_)) => deleted.push(object),
                // Gone meanwhile: somebody else did it.
                Err(error) if error.code() == 404 => {}
                Err(error) => return Err(error),
            }
        }
        let metadata = ListMetadata {
            revision,
            ..ListMetadata::default()
        };
        Ok(view.list(deleted, &metadata))
    }
}
