//! What the kernel knows about this process.

use std::fs;

use super::text::Text;

/// Times and sizes of this process by the names of Prometheus' client libraries, in its text format.
///
/// Read from `/proc`, so empty elsewhere than on Linux; what cannot be read is left out. Cost: four
/// small files and a listing of the open descriptors.
#[must_use]
pub fn process() -> String {
    let mut text = Text::default();
    for (name, kind, help, value) in values() {
        let name = format!("process_{name}");
        text.family(&name, kind, help);
        text.sample(&name, &[], value);
    }
    text.finish()
}

fn values() -> Vec<(&'static str, &'static str, &'static str, f64)> {
    let mut values = Vec::new();
    let stat = fs::read_to_string("/proc/self/stat").ok();
    if let Some(stat) = stat.as_deref().and_then(parse_stat) {
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        values.extend([
            (
                "cpu_seconds_total",
                "counter",
                "Processor time, user and system",
                stat.cpu_ticks as f64 / ticks,
            ),
            (
                "virtual_memory_bytes",
                "gauge",
                "Size of the address space",
                stat.virtual_bytes as f64,
            ),
            (
                "resident_memory_bytes",
                "gauge",
                "Memory that is resident",
                stat.resident_pages as f64 * rustix::param::page_size() as f64,
            ),
        ]);
        let boot = fs::read_to_string("/proc/stat").ok();
        if let Some(boot) = boot.as_deref().and_then(parse_boot_time) {
            let start = boot as f64 + stat.start_ticks as f64 / ticks;
            values.push((
                "start_time_seconds",
                "gauge",
                "Start of the process, in seconds since 1970",
                start,
            ));
        }
    }
    if let Ok(open) = fs::read_dir("/proc/self/fd") {
        // The listing itself has one open.
        let open = open.count().saturating_sub(1) as f64;
        values.push(("open_fds", "gauge", "Open file descriptors", open));
    }
    let limits = fs::read_to_string("/proc/self/limits").ok();
    if let Some(max) = limits.as_deref().and_then(parse_max_descriptors) {
        values.push(("max_fds", "gauge", "Allowed file descriptors", max));
    }
    values
}

#[derive(Debug, PartialEq, Eq)]
struct Stat {
    cpu_ticks: u64,
    start_ticks: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

/// `/proc/self/stat`. The second field is the program's name, which may hold blanks and brackets.
fn parse_stat(text: &str) -> Option<Stat> {
    let (_, rest) = text.rsplit_once(')')?;
    // The first of these is the third field of the file.
    let fields: Vec<_> = rest.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    Some(Stat {
        cpu_ticks: field(14)? + field(15)?,
        start_ticks: field(22)?,
        virtual_bytes: field(23)?,
        resident_pages: field(24)?,
    })
}

/// `btime` of `/proc/stat`.
fn parse_boot_time(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("btime "))?;
    line.trim().parse().ok()
}

/// The soft limit of `/proc/self/limits`.
fn parse_max_descriptors(text: &str) -> Option<f64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(f64::INFINITY),
        number => number.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_kernel_are_read_field_by_field() {
        let stat = "7 (a ) (b) S 1 2 3 4 5 6 7 8 9 10 100 20 13 14 15 16 17 18 5000 4096 3 0";
        let expected = Stat {
            cpu_ticks: 120,
            start_ticks: 5000,
            virtual_bytes: 4096,
            resident_pages: 3,
        };
        assert_eq!(parse_stat(stat), Some(expected));
        assert_eq!(
            parse_boot_time("cpu 1\nbtime 1700000000\n"),
            Some(1_700_000_000)
        );
        let limits = "Limit Soft Hard Units\nMax open files            1024  4096 files\n";
        assert_eq!(parse_max_descriptors(limits), Some(1024.0));
        for garbage in ["", "x", "1 (a) S 1"] {
            assert_eq!(parse_stat(garbage), None);
            assert_eq!(parse_boot_time(garbage), None);
            assert_eq!(parse_max_descriptors(garbage), None);
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_has_time_memory_and_descriptors() {
        let text = process();
        for name in [
            "cpu_seconds_total",
            "resident_memory_bytes",
            "virtual_memory_bytes",
            "start_time_seconds",
            "open_fds",
            "max_fds",
        ] {
            let start = format!("process_{name} ");
            let line = text.lines().find(|line| line.starts_with(&start));
            let value: f64 = line.unwrap()[start.len()..].parse().unwrap();
            assert!(value > 0.0 || name == "cpu_seconds_total", "{name} {value}");
        }
    }
}
