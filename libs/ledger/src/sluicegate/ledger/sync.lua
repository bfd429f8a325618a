-- One call of one edge process: brings what its meters settled and hold, takes what it may spend next.
-- The protocol and the reasons are in ledger.py; times are ms of this server.
-- KEYS: born, alive, then the meters. ARGV: process, number of this call, number of the last call known to have run,
-- watermark, then 11 per meter: kind limit zero_from joined settled hold need want ttl leave expire_at.
-- Answer: status, now, then 5 per meter: code, grant, spent, left, members. Status LOST: the last call that is known here.

local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local LONGEST_TTL, BORN_MARGIN, HOUR = 80000, 60000, 3600000

local function text(number)
  return string.format('%.0f', number)  -- tostring and .. lose digits above 1e14
end

local process, call, acked, watermark = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

local born = tonumber(redis.call('GET', KEYS[1]))
if not born then
  born = now
  redis.call('SET', KEYS[1], text(now))
end

local seen, known_call, known_watermark = {}, 0, 0
local alive = redis.call('HGETALL', KEYS[2])
for i = 1, #alive, 2 do
  local last_call, last_seen, mark = string.match(alive[i + 1], '^(%d+) (%d+) (%d+)$')
  if alive[i] == process then
    known_call, known_watermark = tonumber(last_call), tonumber(mark)
  elseif tonumber(last_seen) + LONGEST_TTL <= now then
    redis.call('HDEL', KEYS[2], alive[i])  -- dead for every meter; its records follow later
  else
    seen[alive[i]] = tonumber(last_seen)
  end
end

if acked > known_call then return {'LOST', known_call} end  -- what this process knows to be written is gone
if call <= known_call then return {'STALE', now} end        -- a delayed call never undoes a newer one

local answer = {'OK', now}

local function sync(key, at)
  local is_sum = ARGV[at] == 'sum'
  local limit, zero_from, joined = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), ARGV[at + 3] == '1'
  local settled, hold = tonumber(ARGV[at + 4]), tonumber(ARGV[at + 5])
  local need, want = tonumber(ARGV[at + 6]), tonumber(ARGV[at + 7])
  local ttl, leave, expire_at = tonumber(ARGV[at + 8]), ARGV[at + 9] == '1', ARGV[at + 10]

  local base, mine_settled
  local spent, held, members = 0, 0, 1
  local fields = redis.call('HGETALL', key)
  for i = 1, #fields, 2 do
    local name = fields[i]
    if name == 'b' then
      base = tonumber(fields[i + 1])
    elseif name ~= 't' then
      local s, h = string.match(fields[i + 1], '^(%-?%d+) (%-?%d+)$')
      if name == process then
        mine_settled = tonumber(s)
      else
        local is_live = seen[name] ~= nil and seen[name] + ttl > now
        if is_sum then
          -- Only the auditor ends a dead process's lease: what it spent may still be on its way.
          spent, held = spent + tonumber(s), held + tonumber(h)
        elseif is_live then
          held = held + tonumber(h)
        else
          redis.call('HDEL', key, name)
        end
        if is_live then members = members + 1 end
      end
    end
  end

  if is_sum and not base then
    if zero_from == 0 or born + BORN_MARGIN > zero_from then return 'MISSING', 0, 0, 0, members end
    base = 0
    redis.call('HSET', key, 'b', '0')
    redis.call('PEXPIREAT', key, expire_at)
  end
  if joined and not mine_settled then return 'REJOIN', 0, 0, 0, members end

  if not joined then
    if mine_settled and is_sum then  -- the answer to an earlier join was lost
      base = base + mine_settled
      redis.call('HSET', key, 'b', text(base))
    end
    mine_settled, settled = 0, 0
  end
  local total = (base or 0) + spent + settled
  local room = limit - total - held - hold  -- what is held already is never cut here
  local grant = math.max(0, math.min(need, room))
  local extra = math.max(0, math.min(want, math.floor((room - grant) / (2 * members))))

  if leave then
    grant, extra = 0, 0
    if is_sum and settled ~= 0 then redis.call('HSET', key, 'b', text(base + settled)) end
    redis.call('HDEL', key, process)
  else
    redis.call('HSET', key, process, text(settled) .. ' ' .. text(hold + grant + extra))
  end
  if is_sum and settled ~= mine_settled then redis.call('HSET', key, 't', text(now)) end
  if not is_sum then redis.call('PEXPIRE', key, HOUR) end
  return 'OK', grant + extra, total, room - grant - extra, members
end

for i = 3, #KEYS do
  local code, grant, total, left, members = sync(KEYS[i], 5 + (i - 3) * 11)
  local at = #answer
  answer[at + 1], answer[at + 2], answer[at + 3], answer[at + 4], answer[at + 5] = code, grant, total, left, members
end

-- Last: a script that failed half-way has not run, and its process says everything again.
redis.call('HSET', KEYS[2], process, text(call) .. ' ' .. text(now) .. ' ' .. text(math.max(watermark, known_watermark)))
redis.call('PEXPIRE', KEYS[2], HOUR)
return answer
