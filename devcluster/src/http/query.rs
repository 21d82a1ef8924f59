//! Query parameters.

use crate::error::{ApiError, ApiResult};

/// The decoded query of a request; the first value of a name counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    pub(crate) fn parse(query: Option<&str>) -> Self {
        Self(
            form_urlencoded::parse(query.unwrap_or_default().as_bytes())
                .into_owned()
                .collect(),
        )
    }

    /// A parameter's text; `None` when absent or empty.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.raw(name).filter(|text| !text.is_empty())
    }

    fn raw(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    /// Whether a parameter was sent at all.
    pub(crate) fn raw_is_set(&self, name: &str) -> bool {
        self.raw(name).is_some()
    }

    /// All values of a parameter that may be repeated.
    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0
            .iter()
            .filter(move |(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    /// A flag. An empty or `true`-like value sets it, as does any text but `false` and `0`.
    pub(crate) fn flag(&self, name: &str) -> Option<bool> {
        self.raw(name).map(|text| !matches!(text, "false" | "0"))
    }

    /// A whole number.
    ///
    /// # Errors
    /// 400 when the text is none.
    pub(crate) fn number(&self, name: &str) -> ApiResult<Option<i64>> {
        let Some(text) = self.text(name) else {
            return Ok(None);
        };
        text.parse().map(Some).map_err(|_| {
            ApiError::bad_request(format!(
                "strconv.ParseInt: parsing \"{text}\": invalid syntax (query parameter {name} wants a whole number)"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded_and_typed() {
        let query = Query::parse(Some(
            "labelSelector=a%3Db%2Cc&limit=5&watch&x=&bad=1x&f=false",
        ));
        assert_eq!(query.text("labelSelector"), Some("a=b,c"));
        assert_eq!(query.number("limit").unwrap(), Some(5));
        assert_eq!(query.flag("watch"), Some(true));
        assert_eq!(query.flag("f"), Some(false));
        assert_eq!(query.flag("none"), None);
        assert_eq!(query.text("x"), None);
        assert_eq!(query.number("bad").unwrap_err().code(), 400);
    }
}
