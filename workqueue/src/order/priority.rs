//! Highest priority first, by arrival within one priority.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{Keys, Order};
use crate::{
    KeyId, OnAdd,
    clock::saturating_nanos,
    list::{LinkStore, Links, List},
};

/// Ready keys leave by priority, the highest first, and by arrival within one.
///
/// A key whose priority rises stands behind those that wait at the new level already. Work per
/// operation grows with the logarithm of the number of priorities in use.
///
/// With [ageing](Self::with_ageing) a waiting key rises by one level each time the period has
/// passed, so that a low priority gets its share under steady load.
///
/// ```
/// use workqueue::{AddOptions, PriorityQueue, QueueOptions, order::Priority};
///
/// let queue: PriorityQueue<&str> =
///     PriorityQueue::with_order(QueueOptions::default(), Priority::default)?;
/// let at = |priority| AddOptions { priority: Some(priority), ..AddOptions::default() };
/// queue.add_with("resync", at(-100));
/// queue.add("change");
/// assert_eq!(queue.try_get().map(|item| *item), Some("change"));
/// assert_eq!(queue.try_get().map(|item| *item), Some("resync"));
/// # Ok::<_, workqueue::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct Priority {
    levels: BTreeMap<i32, List>,
    ageing: Option<Ageing>,
    len: usize,
}

/// The levels by the rank of their first key: the moment it became ready, put back by one period
/// for each level of its priority. As time passes all ranks stay as they are, and a key with a
/// lower rank is one that has risen as high as, or stood longer than, one with a higher rank.
#[derive(Debug)]
struct Ageing {
    period: i128,
    ranks: BTreeSet<(i128, Reverse<i32>)>,
}

/// What the policy keeps with a key.
#[derive(Debug, Clone, Copy, Default)]
pub struct Place {
    links: Links,
    level: i32,
    at: u64,
}

struct LevelLinks<'a, 'b, K>(&'a mut Keys<'b, K, Place>);

impl<K> LinkStore for LevelLinks<'_, '_, K> {
    fn links(&mut self, id: KeyId) -> &mut Links {
        &mut self.0.slot_mut(id).links
    }
}

impl Priority {
    /// A period of ageing that suits controllers.
    pub const DEFAULT_AGEING: Duration = Duration::from_secs(30);

    /// By priority, where a waiting key rises by one level each `period`; zero means no ageing.
    pub fn with_ageing(period: Duration) -> Self {
        let ageing = (!period.is_zero()).then(|| Ageing {
            period: i128::from(saturating_nanos(period)),
            ranks: BTreeSet::new(),
        });
        Self {
            ageing,
            ..Self::default()
        }
    }

    /// Changes the list of a level and keeps its rank.
    fn change<K>(
        &mut self,
        keys: &mut Keys<'_, K, Place>,
        level: i32,
        change: impl FnOnce(&mut List, &mut LevelLinks<'_, '_, K>),
    ) {
        let list = self.levels.entry(level).or_default();
        let before = list.head().map(|id| keys.slot(id).at);
        change(list, &mut LevelLinks(keys));
        let after = list.head().map(|id| keys.slot(id).at);
        if after.is_none() {
            self.levels.remove(&level);
        }
        if let Some(ageing) = &mut self.ageing
            && before != after
        {
            let rank = |at| {
                (
                    i128::from(at) - i128::from(level) * ageing.period,
                    Reverse(level),
                )
            };
            if let Some(at) = before {
                ageing.ranks.remove(&rank(at));
            }
            ageing.ranks.extend(after.map(rank));
        }
    }

    fn highest(&self) -> Option<i32> {
        match &self.ageing {
            Some(ageing) => ageing.ranks.first().map(|(_, Reverse(level))| *level),
            None => self.levels.last_key_value().map(|(level, _)| *level),
        }
    }
}

impl<K: 'static> Order<K> for Priority {
    type Slot = Place;

    const ON_ADD: OnAdd = OnAdd::Supersede;
    const PRIORITIES: bool = true;

    fn timed(&self) -> bool {
        self.ageing.is_some()
    }

    fn push(&mut self, keys: &mut Keys<'_, K, Place>, id: KeyId, at: u64) {
        let level = keys.priority(id);
        let slot = keys.slot_mut(id);
        (slot.level, slot.at) = (level, at);
        self.change(keys, level, |list, links| list.push_back(links, id));
        self.len += 1;
    }

    fn touch(&mut self, keys: &mut Keys<'_, K, Place>, id: KeyId, at: u64) {
        let level = keys.slot(id).level;
        if keys.priority(id) > level {
            self.change(keys, level, |list, links| list.remove(links, id));
            self.len -= 1;
            self.push(keys, id, at);
        }
    }

    fn pop(&mut self, keys: &mut Keys<'_, K, Place>) -> Option<KeyId> {
        let level = self.highest()?;
        let mut first = None;
        self.change(keys, level, |list, links| first = list.pop_front(links));
        self.len -= 1;
        first
    }

    fn clear(&mut self, _: &mut Keys<'_, K, Place>) {
        self.levels.clear();
        self.len = 0;
        if let Some(ageing) = &mut self.ageing {
            ageing.ranks.clear();
        }
    }

    fn len(&self) -> usize {
        self.len
    }
}
