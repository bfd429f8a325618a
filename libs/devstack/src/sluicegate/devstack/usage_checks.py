"""What must be true of stored usage whatever happened: each record once, and roll-ups equal to its rows."""

from typing import Any

_RECOMPUTED = """
SELECT
    series, date_bin('15 minutes', started_at, timestamptz 'epoch') AS bucket, outcome,
    sum(coalesce(count, 1)) AS requests,
    coalesce(sum(coalesce(count, 1)) FILTER (WHERE cost_nano_usd IS NULL), 0) AS unpriced_requests,
    coalesce(sum(fallbacks), 0) AS fallbacks,
    coalesce(sum(cost_nano_usd), 0) AS cost_nano_usd,
    sum(input_tokens) AS input_tokens,
    coalesce(sum(cached_input_tokens), 0) AS cached_input_tokens,
    coalesce(sum(cache_write_5m_tokens), 0) AS cache_write_5m_tokens,
    coalesce(sum(cache_write_1h_tokens), 0) AS cache_write_1h_tokens,
    sum(output_tokens) AS output_tokens,
    coalesce(sum(reasoning_tokens), 0) AS reasoning_tokens,
    sum(duration_us) AS duration_us,
    usage_latency_fold(array_agg(usage_latency(duration_us, coalesce(count, 1)))) AS duration,
    usage_latency_fold(
        array_agg(usage_latency(first_token_us, coalesce(count, 1))) FILTER (WHERE first_token_us IS NOT NULL)
    ) AS first_token,
    usage_latency_fold(
        array_agg(usage_latency(overhead_us, coalesce(count, 1))) FILTER (WHERE overhead_us IS NOT NULL)
    ) AS overhead
FROM usage
GROUP BY 1, 2, 3
"""

_ROLLED_UP = """
SELECT
    series, bucket, outcome, requests, unpriced_requests, fallbacks, cost_nano_usd, input_tokens,
    cached_input_tokens, cache_write_5m_tokens, cache_write_1h_tokens, output_tokens, reasoning_tokens, duration_us,
    usage_latency_fold(duration) AS duration, usage_latency_fold(first_token) AS first_token,
    usage_latency_fold(overhead) AS overhead
FROM usage_rollup
"""


async def rollup_differences(connection: Any) -> list[Any]:
    """Return the roll-up rows that differ from a recomputation out of the records, from either side."""
    found: list[Any] = await connection.fetch(
        f"""
        WITH wanted AS ({_RECOMPUTED}), have AS ({_ROLLED_UP})
        (SELECT 'missing' AS side, * FROM (TABLE wanted EXCEPT ALL TABLE have) AS x)
        UNION ALL
        (SELECT 'surplus' AS side, * FROM (TABLE have EXCEPT ALL TABLE wanted) AS x)
        """  # noqa: S608 - both are above
    )
    return found


async def last_used_differences(connection: Any) -> list[Any]:
    """Return the keys whose last-used time is not that of their latest record."""
    found: list[Any] = await connection.fetch(
        """
        SELECT key, last_used_at, latest
        FROM usage_last_used
        FULL JOIN (SELECT key, max(started_at) AS latest FROM usage GROUP BY key) AS records USING (key)
        WHERE last_used_at IS DISTINCT FROM latest
        """
    )
    return found
