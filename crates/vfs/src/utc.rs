//! UTC: the date and the time of day of a [`Timestamp`].

use crate::Timestamp;
use std::fmt;

const DAY: i64 = 24 * 60 * 60;

/// A second of the proleptic Gregorian calendar, as UTC counts it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UtcTime {
    /// The year, 0 for 1 BC.
    pub year: i64,
    /// 1 to 12.
    pub month: u32,
    /// The day of the month, from 1 on.
    pub day: u32,
    /// 0 to 23.
    pub hour: u32,
    /// 0 to 59.
    pub minute: u32,
    /// 0 to 59.
    pub second: u32,
}

impl From<Timestamp> for UtcTime {
    fn from(time: Timestamp) -> UtcTime {
        let (days, second) = (time.sec.div_euclid(DAY), time.sec.rem_euclid(DAY) as u32);
        // Howard Hinnant's `civil_from_days`: years begin in March, so that the leap day is the last one.
        let shifted = days + 719_468;
        let (era, of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
        let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let from_march = (5 * of_year + 2) / 153;
        let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
        UtcTime {
            year: year_of_era + era * 400 + i64::from(month < 3),
            month: month as u32,
            day: (of_year - (153 * from_march + 2) / 5 + 1) as u32,
            hour: second / 3600,
            minute: second / 60 % 60,
            second: second % 60,
        }
    }
}

impl fmt::Display for UtcTime {
    /// As RFC 3339 writes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let UtcTime { year, month, day, hour, minute, second } = self;
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_written_as_dates() {
        for (sec, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (-1, "1969-12-31T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (1_795_892_409, "2026-11-28T19:00:09Z"),
        ] {
            assert_eq!(UtcTime::from(Timestamp { sec, nsec: 5 }).to_string(), expected);
        }
    }
}
