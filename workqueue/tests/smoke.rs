use std::time::Duration;
use workqueue::*;
#[tokio::test(start_paused = true)]
async fn smoke() {
    let q: WorkQueue<String> = WorkQueue::new(QueueOptions::default()).unwrap();
    q.add("a".to_owned());
    q.add(&"a".to_owned());
    assert_eq!(q.len(), 1);
    let item = q.get().await.unwrap();
    assert_eq!(item.key(), "a");
    q.add("a".to_owned());
    assert_eq!(q.len(), 0);
    drop(item);
    assert_eq!(q.len(), 1);
    drop(q.get().await);
    q.add_after("b".to_owned(), Duration::from_millis(50));
    assert_eq!((q.len(), q.delayed()), (0, 1));
    let t = tokio::time::Instant::now();
    let item = q.get().await.unwrap();
    assert_eq!(t.elapsed(), Duration::from_millis(50));
    drop(item);
    q.add_rate_limited("b".to_owned());
    assert_eq!(q.num_requeues(&"b".to_owned()), 1);
    assert_eq!(q.get().await.unwrap().key(), "b");
    q.shut_down_with_drain().await;
    assert!(q.get().await.is_none());
}
