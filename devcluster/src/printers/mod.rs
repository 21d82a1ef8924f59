//! Module printers.
