//! What a reflector knows between its calls, and the requests that follow from it.

use std::sync::Arc;

use crate::source::{ListRequest, ListVersion};

/// Page size of lists where none was chosen.
pub(crate) const PAGE_SIZE: u32 = 500;

/// Memory of a reflector.
#[derive(Clone, Debug)]
pub(crate) struct State {
    consistent_first: bool,
    user_page_size: Option<u32>,
    /// Version that the cache has reached.
    last: Option<Arc<str>>,
    /// The last version was refused; only the newest state will do.
    consistent_next: bool,
    /// A list of cached state came in pages, so this server's cache is off.
    cache_pages: bool,
    /// The server has sent a bookmark of its own accord.
    bookmarked: bool,
}

impl State {
    pub(crate) fn new(consistent_first: bool, user_page_size: Option<u32>) -> Self {
        Self {
            consistent_first,
            user_page_size,
            last: None,
            consistent_next: false,
            cache_pages: false,
            bookmarked: false,
        }
    }

    /// The first request of a list round.
    ///
    /// Servers answer a known version from their cache only without a limit; with one they read
    /// their storage. So a limit goes along only where it changes nothing or storage is read.
    pub(crate) fn list_request(&self) -> ListRequest {
        let version = match &self.last {
            _ if self.consistent_next => ListVersion::Consistent,
            Some(last) => ListVersion::NotOlderThan(Arc::clone(last)),
            None if self.consistent_first => ListVersion::Consistent,
            None => ListVersion::Any,
        };
        let limit = match version {
            ListVersion::NotOlderThan(_) if !self.cache_pages => self.user_page_size,
            _ => Some(self.user_page_size.unwrap_or(PAGE_SIZE)),
        };
        ListRequest {
            version,
            limit,
            continue_token: None,
        }
    }

    /// The request for the page after one that ended with `token`.
    pub(crate) fn next_page(first: &ListRequest, token: String) -> ListRequest {
        ListRequest {
            continue_token: Some(token),
            ..first.clone()
        }
    }

    /// The request that takes the place of a page whose token the server has dropped.
    pub(crate) fn whole_list(first: &ListRequest) -> ListRequest {
        ListRequest {
            limit: None,
            continue_token: None,
            version: first.version.clone(),
        }
    }

    /// A list round that began with `first` succeeded in `pages` pages.
    pub(crate) fn listed(&mut self, first: &ListRequest, pages: usize, version: &str) {
        if first.version == ListVersion::Any && pages > 1 {
            self.cache_pages = true;
        }
        self.consistent_next = false;
        self.last = Some(Arc::from(version));
    }

    /// Version at least as new as which a streamed list is wanted; empty for the newest.
    pub(crate) fn stream_version(&self) -> String {
        match &self.last {
            Some(last) if !self.consistent_next => last.to_string(),
            _ => String::new(),
        }
    }

    /// The server sends bookmarks. The one that ends a streamed list was asked for, and shows
    /// nothing of others.
    pub(crate) fn bookmarked(&mut self) {
        self.bookmarked = true;
    }

    /// Whether the server is known to send bookmarks.
    pub(crate) fn is_bookmarked(&self) -> bool {
        self.bookmarked
    }

    /// A streamed list is complete at `version`, as a bookmark said.
    pub(crate) fn streamed(&mut self, version: &str) {
        self.consistent_next = false;
        self.last = Some(Arc::from(version));
    }

    /// The server has, or will have, no state at the version asked for.
    pub(crate) fn version_refused(&mut self) {
        self.consistent_next = true;
    }

    /// An event or bookmark moved the version.
    pub(crate) fn reached(&mut self, version: &str) {
        if self.last.as_deref() != Some(version) {
            self.last = Some(Arc::from(version));
        }
    }

    /// Version from which a watch goes on.
    pub(crate) fn version(&self) -> &str {
        self.last.as_deref().unwrap_or("")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(version: &str) -> ListVersion {
        ListVersion::NotOlderThan(Arc::from(version))
    }

    fn asked(state: &State) -> (ListVersion, Option<u32>) {
        let request = state.list_request();
        (request.version, request.limit)
    }

    #[test]
    fn r1_lists_go_from_any_state_to_the_last_version_and_never_back() {
        let mut state = State::new(false, None);
        assert_eq!(asked(&state), (ListVersion::Any, Some(500)));
        state.listed(&state.list_request(), 1, "10");
        assert_eq!(asked(&state), (at("10"), None));
        state.reached("12");
        assert_eq!(asked(&state), (at("12"), None));
        state.version_refused();
        assert_eq!(asked(&state), (ListVersion::Consistent, Some(500)));
        assert_eq!(
            asked(&state),
            (ListVersion::Consistent, Some(500)),
            "until a list succeeds"
        );
        state.listed(&state.list_request(), 3, "15");
        assert_eq!(asked(&state), (at("15"), None));
    }

    #[test]
    fn i2_a_consistent_first_list_can_be_asked_for() {
        assert_eq!(
            asked(&State::new(true, None)),
            (ListVersion::Consistent, Some(500))
        );
    }

    #[test]
    fn r3_a_known_version_is_paged_only_if_the_cache_pages_or_the_user_says_so() {
        let mut state = State::new(false, None);
        state.listed(&state.list_request(), 3, "10");
        assert_eq!(
            asked(&state),
            (at("10"), Some(500)),
            "the first list came in pages"
        );
        let mut state = State::new(false, Some(4));
        assert_eq!(asked(&state), (ListVersion::Any, Some(4)));
        state.listed(&state.list_request(), 1, "10");
        assert_eq!(asked(&state), (at("10"), Some(4)), "the user set a size");
    }

    #[test]
    fn r4_a_later_page_carries_the_token_and_its_substitute_neither_token_nor_limit() {
        let first = State::new(false, None).list_request();
        let page = State::next_page(&first, "t".to_owned());
        assert_eq!(
            (page.limit, page.continue_token.as_deref()),
            (Some(500), Some("t"))
        );
        let whole = State::whole_list(&first);
        assert_eq!(
            (whole.limit, whole.continue_token, whole.version),
            (None, None, ListVersion::Any)
        );
    }
}
