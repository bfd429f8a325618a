-- migrate:up

-- Alerts and their deliveries, owned by budget-alert; nobody else writes these tables. Ids are generated and sort
-- by the time they were made. Endpoints and budgets are named by id only: admin may delete them, history stays.

-- A threshold that a budget's spend reached in one period: one row, whoever found it and however often.
CREATE TABLE alerts (
    id text COLLATE "C" PRIMARY KEY,
    event_id text COLLATE "C" NOT NULL,
    tenant text COLLATE "C",
    budget text COLLATE "C" NOT NULL,
    budget_name text NOT NULL,
    scope text NOT NULL,
    scope_id text COLLATE "C" NOT NULL,
    period_start timestamptz NOT NULL,
    period_end timestamptz NOT NULL,
    threshold_percent integer NOT NULL,
    limit_nano_usd bigint NOT NULL,
    spent_nano_usd bigint NOT NULL,
    is_soft boolean NOT NULL,
    reached_at timestamptz NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (budget, scope, scope_id, period_start, threshold_percent)
);
CREATE INDEX alerts_tenant ON alerts (tenant, id);
CREATE INDEX alerts_event ON alerts (event_id);

-- One message to one endpoint; without an alert it is a test. `message_id` is what the receiver sees and may tell
-- repeats by. `attempts` only grows: it is also the token by which a sender proves that the claim is still its own.
-- `attempts_left` and `expires_at` begin anew with each replay. `command`: the last command that was obeyed.
-- pending: waits for `next_attempt_at`, or is being sent until `claimed_until`. dead: not delivered, may be replayed.
CREATE TABLE deliveries (
    id text COLLATE "C" PRIMARY KEY,
    alert text COLLATE "C" REFERENCES alerts ON DELETE CASCADE,
    endpoint text COLLATE "C" NOT NULL,
    tenant text COLLATE "C",
    message_id text COLLATE "C" NOT NULL,
    state text NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'delivered', 'dead')),
    attempts integer NOT NULL DEFAULT 0,
    attempts_left integer NOT NULL,
    next_attempt_at timestamptz NOT NULL,
    claimed_until timestamptz,
    expires_at timestamptz NOT NULL,
    last_status integer,
    last_error text,
    command text COLLATE "C",
    created_at timestamptz NOT NULL DEFAULT now(),
    ended_at timestamptz,
    UNIQUE (alert, endpoint)
);
CREATE INDEX deliveries_due ON deliveries (next_attempt_at) WHERE state = 'pending';
CREATE INDEX deliveries_endpoint ON deliveries (endpoint, id);
CREATE INDEX deliveries_tenant ON deliveries (tenant, id);
CREATE UNIQUE INDEX deliveries_test ON deliveries (command) WHERE alert IS NULL;

-- Written when an attempt begins; without `ended_at` it is under way, or its process was killed.
CREATE TABLE delivery_attempts (
    delivery text COLLATE "C" NOT NULL REFERENCES deliveries ON DELETE CASCADE,
    number integer NOT NULL,
    started_at timestamptz NOT NULL,
    ended_at timestamptz,
    status integer,
    error text,
    PRIMARY KEY (delivery, number)
);

-- What deliveries have learned about an endpoint. No row: nothing bad. open: nothing is sent before `open_until`, then
-- one message tries. gone: it answered 410; nothing is sent until its configuration changes or a test succeeds.
CREATE TABLE endpoint_circuits (
    endpoint text COLLATE "C" PRIMARY KEY,
    state text NOT NULL CHECK (state IN ('closed', 'open', 'gone')),
    failures integer NOT NULL,
    open_until timestamptz,
    last_error text,
    changed_at timestamptz NOT NULL
);

-- migrate:down

DROP TABLE endpoint_circuits, delivery_attempts, deliveries, alerts;
