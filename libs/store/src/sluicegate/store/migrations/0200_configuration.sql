-- migrate:up

-- Configuration, owned by admin; nobody else writes these tables. Ids are generated and sort by the time they
-- were made (collation C: lists are paged by id). A deleted record keeps its row: usage records name it for years.
-- `version` counts the changes of a record.

CREATE TABLE tenants (
    id text COLLATE "C" PRIMARY KEY,
    name text NOT NULL,
    enabled boolean NOT NULL,
    version integer NOT NULL DEFAULT 1,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    deleted_at timestamptz
);
CREATE UNIQUE INDEX tenants_name ON tenants (name) WHERE deleted_at IS NULL;

CREATE TABLE departments (
    id text COLLATE "C" PRIMARY KEY,
    tenant text COLLATE "C" NOT NULL REFERENCES tenants,
    name text NOT NULL,
    enabled boolean NOT NULL,
    version integer NOT NULL DEFAULT 1,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    deleted_at timestamptz
);
CREATE UNIQUE INDEX departments_name ON departments (tenant, name) WHERE deleted_at IS NULL;

CREATE TABLE teams (
    id text COLLATE "C" PRIMARY KEY,
    tenant text COLLATE "C" NOT NULL REFERENCES tenants,
    department text COLLATE "C" REFERENCES departments,
    name text NOT NULL,
    enabled boolean NOT NULL,
    version integer NOT NULL DEFAULT 1,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    deleted_at timestamptz
);
CREATE UNIQUE INDEX teams_name ON teams (tenant, name) WHERE deleted_at IS NULL;
CREATE INDEX teams_department ON teams (department);

-- A key's text is never stored: `digest` is its SHA-256 in hex, `prefix` its first characters.
CREATE TABLE keys (
    id text COLLATE "C" PRIMARY KEY,
    team text COLLATE "C" NOT NULL REFERENCES teams,
    name text NOT NULL,
    digest text COLLATE "C" NOT NULL UNIQUE CHECK (digest ~ '^[0-9a-f]{64}$'),
    prefix text NOT NULL,
    enabled boolean NOT NULL,
    allowed_models text[],
    expires_at timestamptz,
    revoked_at timestamptz,
    version integer NOT NULL DEFAULT 1,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    deleted_at timestamptz,
    CHECK (deleted_at IS NULL OR revoked_at IS NOT NULL)
);
CREATE INDEX keys_team ON keys (team, id);

-- A credential is sealed (AES-256-GCM, the provider's id as associated data); `credential_hint` is its end.
CREATE TABLE providers (
    id text COLLATE "C" PRIMARY KEY,
    tenant text COLLATE "C" REFERENCES tenants,
    name text NOT NULL,
    type text NOT NULL,
    base_url text NOT NULL,
    credential_key_id text,
    credential_nonce bytea,
    credential_ciphertext bytea,
    credential_hint text,
    supports_stream_options boolean NOT NULL,
    connect_timeout_ms integer NOT NULL,
    first_byte_timeout_ms integer NOT NULL,
    idle_timeout_ms integer NOT NULL,
    total_timeout_ms integer NOT NULL,
    max_connections integer NOT NULL,
    enabled boolean NOT NULL,
    version integer NOT NULL DEFAULT 1,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    deleted_at timestamptz,
    CHECK (num_nulls(credential_key_id, credential_nonce, credential_ciphertext) IN (0, 3))
);
CREATE UNIQUE INDEX providers_name ON providers (tenant, name) NULLS NOT DISTINCT WHERE deleted_at IS NULL;

CREATE TABLE models (
    id text COLLATE "C" PRIMARY KEY,
    provider text COLLATE "C" NOT NULL REFERENCES providers,
    name text NOT NULL,
    model_type text NOT NULL,
    capabilities text[] NOT NULL,
    context_tokens integer,
    max_output_tokens integer,
    owned_by text NOT NULL,
    enabled boolean NOT NULL,
    version integer NOT NULL DEFAULT 1,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    deleted_at timestamptz
);
CREATE UNIQUE INDEX models_name ON models (provider, name) WHERE deleted_at IS NULL;

-- Integer nano-USD per million tokens. Usage records name (model, version): a price that was replaced stays,
-- marked as retired.
CREATE TABLE model_prices (
    model text COLLATE "C" NOT NULL REFERENCES models,
    version integer NOT NULL,
    valid_from timestamptz NOT NULL,
    input bigint NOT NULL CHECK (input >= 0),
    output bigint NOT NULL CHECK (output >= 0),
    cached_input bigint CHECK (cached_input >= 0),
    cache_write_5m bigint CHECK (cache_write_5m >= 0),
    cache_write_1h bigint CHECK (cache_write_1h >= 0),
    reasoning bigint CHECK (reasoning >= 0),
    created_at timestamptz NOT NULL DEFAULT now(),
    retired_at timestamptz,
    PRIMARY KEY (model, version)
);
CREATE UNIQUE INDEX model_prices_valid_from ON model_prices (model, valid_from) WHERE retired_at IS NULL;

CREATE TABLE routes (
    id text COLLATE "C" PRIMARY KEY,
    tenant text COLLATE "C" REFERENCES tenants,
    alias text NOT NULL,
    name text NOT NULL,
    enabled boolean NOT NULL,
    version integer NOT NULL DEFAULT 1,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    deleted_at timestamptz
);
CREATE UNIQUE INDEX routes_alias ON routes (tenant, alias) NULLS NOT DISTINCT WHERE deleted_at IS NULL;

CREATE TABLE route_targets (
    route text COLLATE "C" NOT NULL REFERENCES routes,
    place integer NOT NULL,
    model text COLLATE "C" NOT NULL REFERENCES models,
    PRIMARY KEY (route, place)
);
CREATE INDEX route_targets_model ON route_targets (model);

-- One row per change, written in its transaction; secrets are masked.
CREATE TABLE audit (
    event_id text COLLATE "C" PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT now(),
    actor text NOT NULL,
    address text,
    noun text NOT NULL,
    record_id text COLLATE "C" NOT NULL,
    verb text NOT NULL,
    before jsonb,
    after jsonb
);
CREATE INDEX audit_record ON audit (record_id, at);
CREATE INDEX audit_at ON audit USING brin (at);

-- What must still be told to the edges: a row names a record, never its state. Rows leave by their sequence, one by
-- one, because sequences commit out of order. `is_projected`: only the audit event is still to be published.
CREATE TABLE outbox (
    sequence bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    noun text NOT NULL,
    record_id text COLLATE "C" NOT NULL,
    event_id text COLLATE "C",
    is_projected boolean NOT NULL DEFAULT false
);

-- migrate:down

DROP TABLE outbox, audit, route_targets, routes, model_prices, models, providers, keys, teams, departments, tenants;
