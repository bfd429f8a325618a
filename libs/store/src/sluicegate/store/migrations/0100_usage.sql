-- migrate:up

-- Names and ids of every kind, each once: rows hold the number. Only usage-writer adds to it.
CREATE TABLE usage_name (
    id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE
);

-- Who called what through whom, and how it is counted: the combinations that occur. A row of `usage` holds
-- one number for all of it, which is what makes it narrow, and roll-ups group by it. A name of 0 and a
-- price version of -1 stand for "none". `usage_source` and `cost_source` are places in the lists of
-- contracts.usage.
CREATE TABLE usage_series (
    id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant integer NOT NULL,
    department integer NOT NULL,
    team integer NOT NULL,
    key integer NOT NULL,
    endpoint integer NOT NULL,
    requested_model integer NOT NULL,
    provider integer NOT NULL,
    upstream_model integer NOT NULL,
    price_version integer NOT NULL,
    usage_source smallint NOT NULL,
    cost_source smallint NOT NULL,
    streamed boolean NOT NULL,
    UNIQUE (
        key, requested_model, provider, upstream_model, endpoint, team, department, tenant, price_version,
        usage_source, cost_source, streamed
    )
);
CREATE INDEX usage_series_tenant ON usage_series (tenant);
CREATE INDEX usage_series_department ON usage_series (department);
CREATE INDEX usage_series_team ON usage_series (team);
CREATE INDEX usage_series_provider ON usage_series (provider);
CREATE INDEX usage_series_upstream_model ON usage_series (upstream_model);

-- One row per request. `outcome` is a place in the list of contracts.usage. To stay narrow, columns that are
-- mostly 0 (or `count` = 1) are NULL then; only for `cost_nano_usd` and the times NULL means "not known". Times
-- but the duration end at 2^31-1 µs (36 minutes). Columns are ordered so that none is padded.
CREATE TABLE usage (
    started_at timestamptz NOT NULL,
    duration_us bigint NOT NULL,
    cost_nano_usd bigint,
    series integer NOT NULL,
    key integer NOT NULL,
    edge integer NOT NULL,
    input_tokens integer NOT NULL,
    output_tokens integer NOT NULL,
    provider_us integer,
    first_token_us integer,
    overhead_us integer,
    cached_input_tokens integer,
    cache_write_5m_tokens integer,
    cache_write_1h_tokens integer,
    reasoning_tokens integer,
    error_code integer,
    count integer,
    status smallint NOT NULL,
    outcome smallint NOT NULL,
    fallbacks smallint,
    request_id uuid NOT NULL,
    upstream_request_id text,
    PRIMARY KEY (started_at, request_id)
) PARTITION BY RANGE (started_at);
CREATE INDEX usage_key ON usage (key, started_at);

-- What few requests have. No index but BRIN: it is looked up by a request's own time.
CREATE TABLE usage_detail (
    started_at timestamptz NOT NULL,
    request_id uuid NOT NULL,
    end_user text,
    traceparent text,
    rule text,
    tags jsonb,
    attempts jsonb,
    guard jsonb
) PARTITION BY RANGE (started_at);
CREATE INDEX usage_detail_started_at ON usage_detail USING brin (started_at) WITH (pages_per_range = 16);

-- Latency histograms are bags of `bucket << 40 | count`, in no order, a bucket perhaps more than once: so
-- adding to one is appending, and only a long one is folded. Bucket i holds (2^((i-1)/8), 2^(i/8)] µs; its
-- middle is within 4.5 % of all it holds; bucket 255 (66 minutes) holds the rest.
CREATE FUNCTION usage_latency(us bigint, weight bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN
    (CASE WHEN us <= 1 THEN 0 ELSE least(255, ceil(ln(us::float8) * 11.541560327111707)) END)::bigint << 40 | weight;

CREATE FUNCTION usage_latency_fold(bag bigint[]) RETURNS bigint[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT array_agg(bucket << 40 | count ORDER BY bucket)
    FROM (
        SELECT entry >> 40 AS bucket, sum(entry & 1099511627775)::bigint AS count
        FROM unnest(bag) AS entry
        GROUP BY 1
    ) AS folded
$$;

CREATE FUNCTION usage_latency_merge(one bigint[], other bigint[]) RETURNS bigint[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN
    CASE
        WHEN coalesce(cardinality(one), 0) + coalesce(cardinality(other), 0) > 64 THEN usage_latency_fold(one || other)
        ELSE one || other
    END;

CREATE AGGREGATE usage_latency_union(bigint[]) (SFUNC = usage_latency_merge, STYPE = bigint[]);

-- The latency in µs that the fraction `q` of a bag stays at or below; NULL for an empty bag.
CREATE FUNCTION usage_latency_percentile(bag bigint[], q float8) RETURNS float8
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT power(2, (bucket - 0.5) / 8)
    FROM (
        SELECT
            entry >> 40 AS bucket,
            sum(entry & 1099511627775) OVER (ORDER BY entry >> 40) AS up_to,
            sum(entry & 1099511627775) OVER () AS total
        FROM unnest(bag) AS entry
    ) AS running
    WHERE up_to >= q * total
    ORDER BY bucket
    LIMIT 1
$$;

-- Sums over 15 minutes (`bucket` is their start), because time zones lie at :30 and :45 too.
CREATE TABLE usage_rollup (
    bucket timestamptz NOT NULL,
    series integer NOT NULL,
    outcome smallint NOT NULL,
    requests bigint NOT NULL,
    unpriced_requests bigint NOT NULL,
    fallbacks bigint NOT NULL,
    cost_nano_usd bigint NOT NULL,
    input_tokens bigint NOT NULL,
    cached_input_tokens bigint NOT NULL,
    cache_write_5m_tokens bigint NOT NULL,
    cache_write_1h_tokens bigint NOT NULL,
    output_tokens bigint NOT NULL,
    reasoning_tokens bigint NOT NULL,
    duration_us bigint NOT NULL,
    duration bigint[],
    first_token bigint[],
    overhead bigint[],
    PRIMARY KEY (series, bucket, outcome)
) WITH (fillfactor = 70);
CREATE INDEX usage_rollup_bucket ON usage_rollup USING brin (bucket) WITH (pages_per_range = 16);

-- When each key was last seen, whatever came of it.
CREATE TABLE usage_last_used (
    key integer PRIMARY KEY,
    last_used_at timestamptz NOT NULL
) WITH (fillfactor = 50);

CREATE VIEW key_last_used AS
SELECT usage_name.name AS key, last_used_at
FROM usage_last_used
JOIN usage_name ON usage_name.id = usage_last_used.key;

CREATE VIEW usage_series_named AS
SELECT
    series.id,
    tenant.name AS tenant,
    department.name AS department,
    team.name AS team,
    key.name AS key,
    endpoint.name AS endpoint,
    requested_model.name AS requested_model,
    provider.name AS provider,
    upstream_model.name AS upstream_model,
    series.streamed,
    nullif(series.price_version, -1) AS price_version,
    (ARRAY['provider', 'estimated', 'partial', 'none'])[series.usage_source + 1] AS usage_source,
    (ARRAY['priced', 'unpriced'])[series.cost_source + 1] AS cost_source
FROM usage_series AS series
LEFT JOIN usage_name AS tenant ON tenant.id = series.tenant
LEFT JOIN usage_name AS department ON department.id = series.department
LEFT JOIN usage_name AS team ON team.id = series.team
LEFT JOIN usage_name AS key ON key.id = series.key
LEFT JOIN usage_name AS endpoint ON endpoint.id = series.endpoint
LEFT JOIN usage_name AS requested_model ON requested_model.id = series.requested_model
LEFT JOIN usage_name AS provider ON provider.id = series.provider
LEFT JOIN usage_name AS upstream_model ON upstream_model.id = series.upstream_model;

-- A request with its names, as contracts.usage knows it. Always bound it by `started_at`.
CREATE VIEW usage_record AS
SELECT
    usage.started_at,
    usage.request_id,
    series.tenant,
    series.department,
    series.team,
    series.key,
    series.endpoint,
    series.requested_model,
    series.provider,
    series.upstream_model,
    series.streamed,
    usage.upstream_request_id,
    usage.status,
    (ARRAY['success', 'client_cancelled', 'stream_interrupted', 'interrupted', 'provider_error', 'rate_limited',
        'budget_exceeded', 'guard_blocked', 'rejected'])[usage.outcome + 1] AS outcome,
    error_code.name AS error_code,
    coalesce(usage.fallbacks, 0) AS fallbacks,
    usage.input_tokens,
    coalesce(usage.cached_input_tokens, 0) AS cached_input_tokens,
    coalesce(usage.cache_write_5m_tokens, 0) AS cache_write_5m_tokens,
    coalesce(usage.cache_write_1h_tokens, 0) AS cache_write_1h_tokens,
    usage.output_tokens,
    coalesce(usage.reasoning_tokens, 0) AS reasoning_tokens,
    series.usage_source,
    usage.cost_nano_usd,
    series.cost_source,
    series.price_version,
    usage.duration_us,
    usage.first_token_us,
    usage.provider_us,
    usage.overhead_us,
    edge.name AS edge,
    coalesce(usage.count, 1) AS count
FROM usage
JOIN usage_series_named AS series ON series.id = usage.series
LEFT JOIN usage_name AS error_code ON error_code.id = usage.error_code
LEFT JOIN usage_name AS edge ON edge.id = usage.edge;

-- migrate:down
