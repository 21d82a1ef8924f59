//! W14, W29, W72 and W88: what the queue takes from the heap, counted by the allocator.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    sync::Arc,
    time::Duration,
};

use workqueue::{
    AddOptions, FairQueue, Origin, PriorityQueue, QueueOptions, WorkQueue,
    clock::ManualClock,
    limiter::ItemExponential,
    metrics::Registry,
    order::{Fair, Order, Priority},
};

/// Counts for each thread, so that tests do not disturb each other.
struct Counting;

thread_local! {
    static LIVE_BYTES: Cell<isize> = const { Cell::new(0) };
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    LIVE_BYTES.with(|live| live.set(live.get() + bytes));
    if bytes > 0 {
        ALLOCATIONS.with(|n| n.set(n.get() + 1));
    }
}

fn size(layout: Layout) -> isize {
    isize::try_from(layout.size()).expect("an allocation fits into half the address space")
}

// SAFETY: everything is done by the system's allocator; the counters allocate nothing.
#[expect(unsafe_code, reason = "an allocator cannot be written without")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(size(layout));
        // SAFETY: the caller's promises are those that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(-size(layout));
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn live_bytes() -> isize {
    LIVE_BYTES.with(Cell::get)
}

/// Allocations while `f` runs.
fn allocations(f: impl FnOnce()) -> usize {
    let before = ALLOCATIONS.with(Cell::get);
    f();
    ALLOCATIONS.with(Cell::get) - before
}

const MILLION: u32 = 1_000_000;
const MANY: u32 = 200_000;

fn options(named: bool) -> (QueueOptions<u32>, ManualClock) {
    let clock = ManualClock::new();
    let options = QueueOptions {
        name: if named {
            "memory".to_owned()
        } else {
            String::new()
        },
        registry: Registry::new(),
        clock: Arc::new(clock.clone()),
        limiter: Arc::new(ItemExponential::new(
            Duration::from_millis(1),
            Duration::from_secs(1),
        )),
        ..QueueOptions::default()
    };
    (options, clock)
}

/// `n` keys through the queue, after a few that stay; heap bytes before and after.
fn burst<O: Order<u32>>(queue: &WorkQueue<u32, O>, n: u32, add: impl Fn(u32)) -> (isize, isize) {
    // What a queue keeps once it has been used at all belongs to "before".
    for key in 0..1000 {
        add(key);
    }
    while queue.try_get().is_some() {}
    queue.add_after(MILLION, Duration::from_secs(1_000_000));
    let before = live_bytes();
    for key in 0..n {
        add(key);
    }
    while queue.try_get().is_some() {}
    (before, live_bytes())
}

#[track_caller]
fn assert_given_back((before, after): (isize, isize)) {
    assert!(
        after <= 2 * before,
        "{before} bytes before the burst, {after} after it"
    );
}

#[test]
fn w14_after_a_burst_of_a_million_keys_the_memory_is_given_back() {
    for (named, n) in [(false, MILLION), (true, MANY)] {
        let queue = WorkQueue::new(options(named).0).unwrap();
        assert_given_back(burst(&queue, n, |key| queue.add(key)));
    }
}

#[test]
fn w14_priorities_and_flows_give_their_memory_back_too() {
    let queue = PriorityQueue::with_order(options(true).0, Priority::default).unwrap();
    assert_given_back(burst(&queue, MANY, |key| {
        let priority = Some(i32::try_from(key % 50).unwrap());
        queue.add_with(
            key,
            AddOptions {
                priority,
                ..AddOptions::default()
            },
        );
    }));
    let flows = || Fair::new(|key: &u32| key % 10_000);
    let queue = FairQueue::with_order(options(false).0, flows).unwrap();
    assert_given_back(burst(&queue, MANY, |key| queue.add(key)));
}

#[test]
fn w14_w40_the_limiter_gives_its_memory_back_with_forget() {
    let (options, clock) = options(false);
    let queue = WorkQueue::new(options).unwrap();
    let round = |keys: std::ops::Range<u32>| {
        keys.clone().for_each(|key| queue.add_rate_limited(key));
        keys.for_each(|key| queue.forget(&key));
        clock.advance(Duration::from_secs(1));
        while queue.try_get().is_some() {}
    };
    round(0..10_000);
    let before = live_bytes();
    round(0..MANY);
    assert_given_back((before, live_bytes()));
}

#[test]
fn w29_a_million_deadlines_take_at_most_64_bytes_a_key_beside_the_key() {
    let (options, _clock) = options(false);
    let queue = WorkQueue::new(options).unwrap();
    let before = live_bytes();
    for key in 0..MILLION {
        queue.add_after(key, Duration::from_micros(u64::from(key) + 1));
    }
    let bytes = (live_bytes() - before) as f64 / f64::from(MILLION) - size_of::<u32>() as f64;
    assert!(bytes <= 64.0, "{bytes} bytes");
}

#[test]
fn w89_a_million_ready_keys_take_less_than_70_bytes_a_key() {
    let queue = WorkQueue::new(options(false).0).unwrap();
    let before = live_bytes();
    (0..MILLION).for_each(|key| queue.add(key));
    let bytes = (live_bytes() - before) as f64 / f64::from(MILLION);
    assert!(bytes <= 70.0, "{bytes} bytes");
}

#[test]
fn w88_nothing_is_allocated_for_a_known_key() {
    for named in [false, true] {
        let (options, _clock) = options(named);
        let queue = WorkQueue::new(options).unwrap();
        // Keys are known once they are in the queue; they stay so by their pending deadlines.
        (0..100).for_each(|key| queue.add_after(key, Duration::from_secs(1_000_000)));
        let some = || {
            for key in 0..100 {
                queue.add(key);
                queue.add(key);
                queue.add_after(key, Duration::from_secs(999_999));
                let after = Some(Duration::from_secs(1_000_000));
                queue.add_with(
                    key,
                    AddOptions {
                        after,
                        origin: Origin::Reminder,
                        ..AddOptions::default()
                    },
                );
            }
            for _ in 0..100 {
                let item = queue.try_get().unwrap();
                queue.add(*item);
            }
            (0..100).for_each(|_| drop(queue.try_get()));
        };
        some();
        assert_eq!(allocations(some), 0, "named: {named}");
    }
}

#[test]
fn w88_a_queue_that_hovers_around_empty_allocates_nothing() {
    let queue = WorkQueue::new(options(false).0).unwrap();
    let cycle = || {
        for key in 0..1000 {
            queue.add(key);
            drop(queue.try_get());
        }
    };
    cycle();
    assert_eq!(allocations(cycle), 0);
}
