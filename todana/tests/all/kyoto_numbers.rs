//! Numbers in the format of Kyoto Cabinet, which the library and a server's calls increment in the
//! same way.
//!
//! The library once supported only decimal text, so it refused numbers that ktserver had stored.

use todana::kyoto::{KyotoRecords, NEVER};
use todana::{Db, ErrorKind, IncrementOrigin, Records, Ttl};

fn databases() -> Vec<Db> {
    ["mem:hash", "mem:tree"].map(|name| Db::open(name).unwrap()).into()
}

#[test]
fn library_and_server_count_on_each_others_numbers() {
    for db in databases() {
        let server = KyotoRecords::new(&db, false);
        assert_eq!(server.increment(b"n", 5, IncrementOrigin::Number(0), NEVER).unwrap(), Some(5));
        assert_eq!(db.increment_binary(b"n", -7, IncrementOrigin::Number(100)).unwrap(), -2);
        assert_eq!(db.get(b"n").unwrap().unwrap(), b"\xff\xff\xff\xff\xff\xff\xff\xfe");
        assert_eq!(server.increment(b"n", 3, IncrementOrigin::Number(0), NEVER).unwrap(), Some(1));

        assert_eq!(
            server.increment_double(b"d", 1.5, IncrementOrigin::Number(0.0), NEVER).unwrap(),
            Some(1.5)
        );
        assert_eq!(db.increment_double(b"d", -3.25, IncrementOrigin::Number(0.0)).unwrap(), -1.75);
        let stored = b"\xff\xff\xff\xff\xff\xff\xff\xfe\x00\x00\xe3\x5f\xa9\x31\xa0\x00";
        assert_eq!(db.get(b"d").unwrap().unwrap(), stored);
        assert_eq!(
            server.increment_double(b"d", 2.0, IncrementOrigin::Number(0.0), NEVER).unwrap(),
            Some(0.25)
        );
    }
}

#[test]
fn origins_set_and_try() {
    for db in databases() {
        assert_eq!(db.increment_binary(b"n", 5, i64::MIN.into()).unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(
            db.increment_double(b"d", 5.0, f64::NEG_INFINITY.into()).unwrap_err().kind(),
            ErrorKind::Invalid
        );
        assert_eq!(db.count(), 0);
        assert_eq!(db.increment_binary(b"n", 5, IncrementOrigin::Number(10)).unwrap(), 15);
        assert_eq!(db.increment_binary(b"n", 5, i64::MIN.into()).unwrap(), 20);
        assert_eq!(db.increment_binary(b"n", 5, i64::MAX.into()).unwrap(), 5);
        assert_eq!(db.increment_double(b"d", 1.5, f64::INFINITY.into()).unwrap(), 1.5);
        assert_eq!(db.increment_double(b"d", 2.5, f64::INFINITY.into()).unwrap(), 2.5);
    }
}

#[test]
fn refused_sum_names_the_record() {
    for db in databases() {
        db.set(b"text", b"seven").unwrap();
        for origin in [IncrementOrigin::Number(0), IncrementOrigin::Set, IncrementOrigin::Try] {
            let error = db.increment_binary(b"text", 1, origin).unwrap_err();
            assert_eq!(error.to_string(), "record \"text\": not a number of 8 bytes");
        }
        let error = db.increment_double(b"text", 1.0, IncrementOrigin::Set).unwrap_err();
        assert_eq!(error.to_string(), "record \"text\": not a number of 16 bytes");
        assert_eq!(db.get(b"text").unwrap().unwrap(), b"seven");

        db.increment_binary(b"n", i64::MAX, IncrementOrigin::Number(0)).unwrap();
        let error = db.increment_binary(b"n", 1, IncrementOrigin::Number(0)).unwrap_err();
        assert_eq!(error.to_string(), "record \"n\": the sum does not fit into 8 bytes");
        assert_eq!(db.increment_binary(b"n", 0, IncrementOrigin::Try).unwrap(), i64::MAX);
        assert!(db.increment_double(b"nan", f64::NAN, IncrementOrigin::Set).is_err());
        assert!(!db.contains(b"nan").unwrap());
    }
}

#[test]
fn sum_keeps_flags_and_expiry_in_transactions() {
    for db in databases() {
        db.set_with(b"n", &7i64.to_be_bytes(), Ttl::Seconds(1000), 3).unwrap();
        let before = db.get_record(b"n").unwrap().unwrap();
        let transaction = db.begin().unwrap();
        assert_eq!(transaction.increment_binary(b"n", 1, IncrementOrigin::Try).unwrap(), 8);
        assert_eq!(transaction.increment_double(b"d", 0.5, IncrementOrigin::Number(0.0)).unwrap(), 0.5);
        transaction.abort();
        assert_eq!((db.get_record(b"n").unwrap().unwrap(), db.count()), (before.clone(), 1));
        db.increment_binary(b"n", 1, IncrementOrigin::Try).unwrap();
        let after = db.get_record(b"n").unwrap().unwrap();
        assert_eq!((after.flags, after.expiry), (3, before.expiry));
    }
}
