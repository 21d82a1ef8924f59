//! helm and kustomize, as `tests/tools/build.sh` builds them from their Go modules.

use std::path::{Path, PathBuf};

use crate::{Error, REQUIRE_VARIABLE};

/// Overrides the folder that the programs are looked for in.
pub const FOLDER_VARIABLE: &str = "PXO_TOOLS";

/// A program of `tests/tools`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tool {
    /// Installs charts.
    Helm,
    /// Builds manifests from bases and overlays.
    Kustomize,
}

impl Tool {
    fn file(self) -> &'static str {
        match self {
            Self::Helm => "helm",
            Self::Kustomize => "kustomize",
        }
    }

    /// The built program, in `$PXO_TOOLS`, else in `target/tools` of the project; `None` where it is not built
    /// and nothing demands it.
    ///
    /// # Errors
    /// [`Error::NotBuilt`] if `PXO_REQUIRE_REALCLUSTER` is set and the program is not there.
    pub fn if_built(self) -> Result<Option<PathBuf>, Error> {
        let folder = std::env::var_os(FOLDER_VARIABLE).map_or_else(
            || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools"),
            PathBuf::from,
        );
        let path = folder.join(self.file());
        if path.is_file() {
            return Ok(Some(path));
        }
        if std::env::var_os(REQUIRE_VARIABLE).is_none() {
            return Ok(None);
        }
        Err(Error::NotBuilt {
            path: path.display().to_string(),
            build: format!("tests/tools/build.sh {}", folder.display()),
        })
    }
}
